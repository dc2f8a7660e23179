"""Device printf: format strings and packed arguments -> text."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

#: Reads bytes of device memory; fewer than asked for where it ends.
Reader = Callable[[int, int], bytes]

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d+|\*)?(?:\.(?P<precision>\d+|\*))?"
    r"(?P<length>hh|h|ll|l|z|j|t)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)
_MAX_STRING = 1 << 16  # bytes


class Arguments:
    """The packed argument buffer of one call, each value at its natural alignment."""

    def __init__(self, read: Reader, address: int) -> None:
        self._read = read
        self._address = address

    def take(self, size: int) -> bytes:
        """Return the next value's bytes."""
        self._address = -(-self._address // size) * size
        value = self._read(self._address, size)
        self._address += size
        return value.ljust(size, b"\0")

    def integer(self, size: int, signed: bool) -> int:
        """Return the next value as an integer."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def double(self) -> float:
        """Return the next value as a double."""
        value: float = struct.unpack("<d", self.take(8))[0]
        return value


def read_string(read: Reader, address: int) -> str:
    """Return the zero-terminated string at a device address."""
    found = b""
    while len(found) < _MAX_STRING:
        piece = read(address + len(found), 64)
        end = piece.find(b"\0")
        if end >= 0 or not piece:
            return (found + piece[: max(end, 0)]).decode(errors="replace")
        found += piece
    return found.decode(errors="replace")


def format_output(read: Reader, text_address: int, arguments_address: int) -> str:
    """Return what a call of printf prints."""
    arguments = Arguments(read, arguments_address)

    def one(match: re.Match[str]) -> str:
        return _convert(match, arguments, read)

    return _CONVERSION.sub(one, read_string(read, text_address))


def _convert(match: re.Match[str], arguments: Arguments, read: Reader) -> str:
    kind = match["kind"]
    if kind == "%":
        return "%"
    width = match["width"] or ""
    if width == "*":
        width = str(arguments.integer(4, True))
    precision = match["precision"]
    if precision == "*":
        precision = str(max(arguments.integer(4, True), 0))
    form = f"%{match['flags']}{width}" + (f".{precision}" if precision is not None else "")
    if kind in "eEfFgG":
        return (form + kind) % arguments.double()
    if kind in "aA":
        text = arguments.double().hex()
        return text.upper() if kind == "A" else text
    if kind == "s":
        return (form + "s") % read_string(read, arguments.integer(8, False))
    if kind == "p":
        return f"{arguments.integer(8, False):#x}"
    size = 8 if match["length"] in ("ll", "l", "z", "j", "t") else 4
    value = arguments.integer(size, kind in "di")
    if kind == "c":
        return (form + "s") % chr(value & 0xFF)
    return (form + ("d" if kind in "iu" else kind)) % value
