"""Logging to stderr: one line a record, key=value extras, secrets blotted out.

A line is ``time LEVEL logger message key=value ...``; the keys come from ``extra``. Secrets
are removed from the finished line, so that none gets through by way of an argument, an extra
or a traceback.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Final

#: Names that ``--log-level`` takes, least to most severe.
LEVELS: Final = ("debug", "info", "warning", "error")
#: What a secret is replaced by.
BLOT: Final = "***"

#: ``user:PASSWORD@`` of a URL, up to the last ``@`` of the authority.
_URL_PASSWORD = re.compile(
    r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/?#]*:)[^\s/?#]*(?=@)", re.IGNORECASE
)
#: ``password=...`` and friends, as in a URL's query or a libpq connection string.
_NAMED_SECRET = re.compile(
    r"(?P<head>\b(?:password|passwd|sslpassword|token|resume_token|secret)[\"']?\s*[=:]\s*)"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s&,;)}'\"]+)",
    re.IGNORECASE,
)
_PLAIN_VALUE = re.compile(r"[^\s\"'=]+")
#: What every record has anyway; anything else came in through ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_protected: set[str] = set()


def protect(secret: str) -> None:
    """Keep ``secret`` out of every later log line and of `redact`'s results.

    Parameters
    ----------
    secret
        A resume token or the like. Text shorter than 8 characters is ignored, because
        blotting it out would make unrelated words unreadable.
    """
    if len(secret) >= 8:
        _protected.add(secret)


def redact(text: str) -> str:
    """Return ``text`` without passwords, tokens and protected secrets."""
    for secret in sorted(_protected, key=len, reverse=True):
        text = text.replace(secret, BLOT)
    text = _URL_PASSWORD.sub(rf"\g<head>{BLOT}", text)
    return _NAMED_SECRET.sub(rf"\g<head>{BLOT}", text)


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback below it."""

    @staticmethod
    def converter(timestamp: float | None) -> time.struct_time:
        """Return the time in UTC, whatever zone the machine is in."""
        return time.gmtime(timestamp)

    def format(self, record: logging.LogRecord) -> str:
        """Return the finished line, with all secrets blotted out."""
        stamp = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        words = [stamp, record.levelname, record.name, _escape(record.getMessage())]
        words += [
            f"{key}={_quote(value)}"
            for key, value in sorted(vars(record).items())
            if key not in _STANDARD
        ]
        line = " ".join(words)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        if record.stack_info:
            line = f"{line}\n{self.formatStack(record.stack_info)}"
        return redact(line)


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is when `configure` is called."""


def configure(level: str) -> None:
    """Send this process's log to stderr; calling it again changes the level.

    Parameters
    ----------
    level
        One of `LEVELS`, for Outlast's own loggers. Other libraries are shown from
        ``warning`` on.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, StderrHandler)]:
        root.removeHandler(handler)
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("outlast").setLevel(level.upper())
    # Records that meet a closed stderr are dropped; a log must never end the process.
    logging.raiseExceptions = False


def _escape(message: str) -> str:
    """Keep a message on its line, so that text from a peer cannot forge a log line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


def _quote(value: object) -> str:
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text) and text.isprintable():
        return text
    escaped = _escape(text.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"'
