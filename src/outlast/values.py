"""Parsers of setting values: text in, checked value out, `Unusable` with what is allowed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

from outlast.errors import ConfigError
from outlast.settings import Unusable, switch

#: Port of the session server unless something else is said.
DEFAULT_PORT = 14833
#: No duration is longer: in milliseconds it must fit a signed 32-bit number.
MAX_SECONDS = 2_147_483.0
#: No size is larger.
MAX_SIZE = (1 << 63) - 1  # bytes

_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE | re.ASCII)
_ENDPOINT = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://)?(?P<host>\[[^\]\s]+\]|[^\s:/\[\]@,;]+)(?::(?P<port>\d{1,5}))?",
    re.IGNORECASE | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_UNITS = {"": 1, "b": 1} | {
    spelling: factor
    for power, letter in enumerate("kmgt", start=1)
    for spelling, factor in (
        (letter, 1024**power),
        (f"{letter}ib", 1024**power),
        (f"{letter}b", 1000**power),
    )
}


def seconds(*, zero: bool) -> Callable[[str], float]:
    """Return a parser of a duration in seconds; ``zero`` says whether 0 is one."""
    least = "0 or more" if zero else "more than 0"
    allowed = f"allowed: a number of seconds, {least}, at most {MAX_SECONDS:.0f}"

    def parse(text: str) -> float:
        text = text.strip()
        if not _NUMBER.fullmatch(text):
            raise Unusable(allowed)
        value = float(text)
        if value > MAX_SECONDS or (value == 0 and not zero):
            raise Unusable(allowed)
        return value

    return parse


def size(text: str) -> int:
    """Parse a size in bytes: ``65536``, ``256MiB``, ``1g`` (1024 based) or ``1GB`` (1000 based)."""
    allowed = "allowed: a size above 0 such as 268435456, 256MiB, 1g or 1.5GiB"
    match = _SIZE.fullmatch(text.strip())
    if match is None or (factor := _UNITS.get(match["unit"].lower())) is None:
        raise Unusable(allowed)
    number = match["number"]
    value = int(float(number) * factor) if "." in number else int(number) * factor
    if not 0 < value <= MAX_SIZE:
        raise Unusable(allowed)
    return value


def number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number within these bounds."""

    def parse(text: str) -> int:
        text = text.strip()
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise Unusable(f"allowed: a whole number from {least} to {most}")
        return int(text)

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """Return a parser of one of ``names``, in any case."""

    def parse(text: str) -> str:
        if (name := text.strip().lower()) not in names:
            raise Unusable(f"allowed: {', '.join(names)}")
        return name

    return parse


def take_over(text: str) -> str:
    """Parse whether to replace a running server: ``yes``, ``no``, or its ``gateway`` alone."""
    if text.strip().lower() == "gateway":
        return "gateway"
    try:
        return "yes" if switch(text) else "no"
    except Unusable as error:
        raise Unusable(f"{error}, or gateway") from None


def provider(text: str) -> str:
    """Parse the name of a plug-in with, perhaps, what it is told: ``NAME`` or ``NAME:ARGUMENT``."""
    plugin, colon, argument = text.strip().partition(":")
    if not _NAME.fullmatch(plugin) or (colon and not argument.isprintable()):
        raise Unusable(
            "allowed: a name of letters, digits, '.', '_' and '-', then perhaps ':' and an argument"
        )
    return text.strip()


def folder(text: str) -> Path:
    """Parse the path of a folder, which need not exist yet."""
    allowed = "allowed: the path of a folder"
    if "\0" in text or not text.strip():
        raise Unusable(allowed)
    try:
        path = Path(text).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise Unusable(f"{allowed}; this is a file")
    except (OSError, RuntimeError) as error:
        raise Unusable(f"{allowed} ({error})") from error
    return path


def session_id(text: str) -> str:
    """Parse the name that a user gives a session."""
    # Late: a server has no such setting, and loads little before its first worker is under way.
    from outlast.session.ids import MAX_SESSION_ID, check_session_id, is_anonymous

    if is_anonymous(text):
        raise Unusable("allowed: a name that is not like those of sessions without one")
    try:
        return check_session_id(text)
    except ConfigError:
        raise Unusable(f"allowed: 1 to {MAX_SESSION_ID} printable characters") from None


def token(text: str) -> str:
    """Parse a resume token."""
    if not text.isascii() or not text.isprintable() or " " in text or not 16 <= len(text) <= 256:
        raise Unusable("allowed: 16 to 256 printable ASCII characters without spaces")
    return text


def bind_endpoint(text: str) -> str:
    """Parse an address to listen at; port 0 lets the system choose."""
    return _endpoint(text, "allowed: tcp://HOST:PORT with a port of 0 to 65535 (0: any free)", 0)


def server_endpoint(text: str) -> str:
    """Parse an address to connect to."""
    return _endpoint(text, "allowed: HOST, HOST:PORT or tcp://HOST:PORT, port 1 to 65535", 1)


def is_loopback(endpoint: str) -> bool:
    """Say whether only this machine can reach ``endpoint``.

    Names other than ``localhost`` do not count, interface names neither: what they stand for
    may change between the check and the bind.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        return False
    host = match["host"].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def database_url(text: str) -> str:
    """Parse the URL of the journal's database.

    ``postgresql://`` is taken as ``postgresql+psycopg://``, the driver that is installed.
    """
    allowed = "allowed: sqlite:///PATH or postgresql+psycopg://USER@HOST:PORT/NAME"
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme in ("postgresql", "postgres"):
        scheme = "postgresql+psycopg"
    if not separator or not text.isprintable() or scheme not in ("sqlite", "postgresql+psycopg"):
        raise Unusable(allowed)
    if scheme == "sqlite":
        path = rest.partition("?")[0]
        if not path.startswith("/") or path in ("/", "/:memory:"):
            raise Unusable(f"{allowed}; a journal outlives its process, so it needs a file")
    elif not rest.partition("?")[0].partition("/")[2]:
        raise Unusable(f"{allowed}; the name of the database is missing")
    return f"{scheme}://{rest}"


def _endpoint(text: str, allowed: str, least_port: int) -> str:
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None or (match["scheme"] or "tcp").lower() != "tcp":
        raise Unusable(allowed)
    host, port = match["host"], int(match["port"] or DEFAULT_PORT)
    if not least_port <= port <= 65535:
        raise Unusable(allowed)
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise Unusable(allowed) from None
    return f"tcp://{host}:{port}"
