"""An epoch in one open file, to be handed from process to process: no folder, no name.

The file holds the data, then the manifest, then a `_TRAILER`. It is read by the same rules
as any stored epoch: no byte counts before its chunk's digest was checked.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from typing import Final

from outlast.checkpoint_providers.locations import Location
from outlast.checkpoint_providers.manifest import MAX_MANIFEST, Manifest, check_epoch
from outlast.checkpoint_providers.reader import EpochReader, open_manifest
from outlast.checkpoint_providers.snapshot import Snapshot
from outlast.checkpoint_providers.storage import read_all, storage_errors, write_all
from outlast.checkpoint_providers.writer import EpochWriter, SaveSteps, write_epoch
from outlast.errors import CheckpointCorrupt

#: Bytes of the data, bytes of the manifest, `_MAGIC`.
_TRAILER: Final = struct.Struct("<QQ8s")
_MAGIC: Final = b"outlast1"
_SOURCE: Final = "a sealed epoch"


def write_sealed(
    snapshot: Snapshot, descriptor: int, cancelled: threading.Event | None = None
) -> None:
    """Write an epoch into an empty file, and verify it there.

    Raises
    ------
    CheckpointError
        It cannot be written, or was cancelled.
    """
    check_epoch(snapshot.epoch, snapshot.lay_out())
    steps = SaveSteps(None, cancelled, _SOURCE)
    with storage_errors("cannot write", _SOURCE, snapshot.size):
        write_epoch(_SealedWriter(descriptor, snapshot.location), snapshot, steps, None)


def read_sealed(descriptor: int) -> EpochReader:
    """Open the epoch in a file; the descriptor stays the caller's.

    Raises
    ------
    CheckpointCorrupt
        There is none, or it is damaged.
    """
    with storage_errors("cannot read", _SOURCE):
        total = os.fstat(descriptor).st_size
        trailer = bytearray(_TRAILER.size)
        start = total - _TRAILER.size
        if start < 0 or read_all(descriptor, memoryview(trailer), start) != len(trailer):
            raise CheckpointCorrupt(f"{_SOURCE} has no end")
        data_size, manifest_size, magic = _TRAILER.unpack(trailer)
        if magic != _MAGIC or data_size + manifest_size != start or manifest_size > MAX_MANIFEST:
            raise CheckpointCorrupt(f"{_SOURCE} has a damaged end")
        return _open(descriptor, None, data_size, manifest_size)


class _SealedWriter(EpochWriter):
    def __init__(self, descriptor: int, location: Location) -> None:
        self._descriptor = descriptor
        self._location = location
        self._data = 0
        self._manifest = 0

    def write(self, views: Sequence[memoryview]) -> None:
        write_all(self._descriptor, views)
        self._data += sum(map(len, views))

    def sync(self) -> None:
        """Nothing to do: it lives as long as somebody holds it open."""

    def put_manifest(self, raw: bytes) -> None:
        self._manifest = len(raw)
        trailer = _TRAILER.pack(self._data, self._manifest, _MAGIC)
        write_all(self._descriptor, [memoryview(raw), memoryview(trailer)])

    def reader(self) -> EpochReader:
        return _open(self._descriptor, self._location, self._data, self._manifest)

    def publish(self) -> None:
        """Nothing to do: whoever is given the file has it."""

    def discard(self) -> None:
        """Nothing to do: closing the file removes it."""


class _SealedReader(EpochReader):
    def __init__(self, manifest: Manifest, descriptor: int) -> None:
        super().__init__(manifest, _SOURCE)
        self._descriptor = descriptor

    def _read_at(self, offset: int, view: memoryview) -> int:
        return read_all(self._descriptor, view, offset)

    def close(self) -> None:
        """Nothing to do: the file is the caller's."""


def _open(
    descriptor: int, location: Location | None, data_size: int, manifest_size: int
) -> EpochReader:
    raw = bytearray(manifest_size)
    if read_all(descriptor, memoryview(raw), data_size) != manifest_size:
        raise CheckpointCorrupt(f"{_SOURCE} ends within its manifest")
    manifest = open_manifest(bytes(raw), _SOURCE, location, None, data_size)
    return _SealedReader(manifest, descriptor)
