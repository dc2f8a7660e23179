"""The points of a save or a read that fault injection can act at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Stage(StrEnum):
    """A step of a provider's work; reached just before it, `WRITE_DATA` after each write."""

    OPEN_TEMP = "open-temp"
    WRITE_DATA = "write-data"
    FSYNC = "fsync"
    MANIFEST = "manifest"
    VERIFY = "verify"
    RENAME = "rename"
    READ = "read"


@dataclass(frozen=True, slots=True)
class StagePoint:
    """Where a provider stands."""

    stage: Stage
    #: Bytes of the data file that were written, or offset of the chunk to be read.
    offset: int = 0
    #: Folder that holds the epoch's files at this point, if it is a local one.
    folder: Path | None = None


#: May raise ``OSError``, as the storage would.
StageHook = Callable[[StagePoint], None]
