"""What one look found."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Grade(enum.StrEnum):
    """How good it is."""

    OK = "ok"
    #: A server runs, but something will be missed.
    WARNING = "warning"
    #: No server can run so.
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    grade: Grade
    #: What is there, or what is wrong and what to do about it.
    text: str

    def __str__(self) -> str:
        return f"{self.grade:<8} {self.what:<12} {self.text}"


def ok(what: str, text: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(what, Grade.OK, text)


def warning(what: str, text: str) -> Finding:
    """Return a finding that somebody will miss something by."""
    return Finding(what, Grade.WARNING, text)


def failure(what: str, text: str) -> Finding:
    """Return a finding that no server can run with."""
    return Finding(what, Grade.FAILURE, text)


def size_text(size: float) -> str:
    """Return bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
