"""Reading a stored epoch: no byte counts before the digest of its chunk was checked."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Self

from blake3 import blake3

from outlast.checkpoint_providers.locations import Location
from outlast.checkpoint_providers.manifest import (
    CHUNK_SIZE,
    MANIFEST_FILE,
    Manifest,
    Region,
    chunk_length,
    decode,
)
from outlast.checkpoint_providers.pieces import PIECE, ahead, memory
from outlast.checkpoint_providers.storage import storage_errors
from outlast.errors import CheckpointCancelled, CheckpointCorrupt, CheckpointError


class EpochReader(ABC):
    """An open stored epoch whose manifest was verified. Not for several threads at once."""

    def __init__(self, manifest: Manifest, source: str) -> None:
        self.manifest = manifest
        #: Names the data in errors.
        self.source = source
        self._scratch = memoryview(bytearray(min(CHUNK_SIZE, manifest.data_size)))
        #: Number of the verified chunk that `_scratch` holds.
        self._held: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _read_at(self, offset: int, view: memoryview) -> int:
        """Fill ``view`` from the data at ``offset``; return the bytes there were."""

    @abstractmethod
    def close(self) -> None:
        """Release what reading holds; may be called twice."""

    def read(self, region: Region | int) -> bytes:
        """Return the verified bytes of a region."""
        buffer = bytearray(self._resolve(region).length)
        self.read_into(region, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, region: Region | int, view: memoryview) -> None:
        """Fill ``view`` with a region's bytes; if this raises, its content is undefined.

        Parameters
        ----------
        region
            One of `Manifest.regions`, or its index.
        view
            Writable, contiguous, as long as the region.

        Raises
        ------
        CheckpointCorrupt
            A chunk does not match its digest or is missing.
        CheckpointError
            The storage cannot be read, or ``view`` does not fit.
        """
        region = self._resolve(region)
        self._fill(region.offset, _bytes_of(view, region))

    def parts(self, regions: Iterable[Region]) -> Generator[tuple[Region, int, memoryview]]:
        """Yield regions in parts of at most `PIECE` bytes: region, offset in it, verified bytes.

        The next part is read and verified, in a thread, while one is used; nothing else may be
        read meanwhile. A part is good until the next one is asked for.

        Raises
        ------
        CheckpointCorrupt
            A chunk does not match its digest or is missing: what came before it is right.
        CheckpointError
            The storage cannot be read.
        """
        with closing(ahead("checkpoint-read", self._jobs(regions))) as parts:
            yield from parts

    def _jobs(
        self, regions: Iterable[Region]
    ) -> Iterator[Callable[[], tuple[Region, int, memoryview]]]:
        slots = [memory(min(PIECE, self.manifest.data_size)) for _ in range(2)]
        for region in map(self._resolve, regions):
            start = 0
            while start < region.length:
                # Up to where a chunk ends, so that the others are verified in their place.
                room = PIECE - (region.offset + start) % CHUNK_SIZE
                count = min(region.length - start, room)
                slots.reverse()
                yield partial(self._part, region, start, slots[0][:count])
                start += count

    def _part(
        self, region: Region, start: int, target: memoryview
    ) -> tuple[Region, int, memoryview]:
        self._fill(region.offset + start, target)
        return region, start, target

    def verify(self, cancelled: threading.Event | None = None) -> None:
        """Read every chunk and check its digest.

        Raises
        ------
        CheckpointCorrupt
            A chunk does not match its digest or is missing.
        CheckpointCancelled
            ``cancelled`` was set.
        """
        for index in range(len(self.manifest.chunks)):
            if cancelled is not None and cancelled.is_set():
                raise CheckpointCancelled(f"verifying {self.source} was cancelled")
            self._held = None
            self._fetch(index, self._scratch[: chunk_length(self.manifest, index)])

    def _fill(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` with verified bytes from ``offset`` of the data on."""
        position = 0
        while position < len(target):
            index, start = divmod(offset + position, CHUNK_SIZE)
            length = chunk_length(self.manifest, index)
            count = min(length - start, len(target) - position)
            part = target[position : position + count]
            if count == length:
                self._fetch(index, part)
            else:
                part[:] = self._chunk(index)[start : start + count]
            position += count

    def _resolve(self, region: Region | int) -> Region:
        regions = self.manifest.regions
        if isinstance(region, int):
            if not 0 <= region < len(regions):
                raise CheckpointError(f"{self.source} has no region {region}")
            return regions[region]
        if region.offset + region.length > self.manifest.data_size:
            raise CheckpointError(f"{self.source} has no region {region.key!r} of that place")
        return region

    def _chunk(self, index: int) -> memoryview:
        view = self._scratch[: chunk_length(self.manifest, index)]
        if self._held != index:
            self._held = None
            self._fetch(index, view)
            self._held = index
        return view

    def _fetch(self, index: int, view: memoryview) -> None:
        """Read chunk ``index`` into ``view`` and verify it there."""
        with storage_errors("cannot read", self.source):
            count = self._read_at(index * CHUNK_SIZE, view)
        if count != len(view):
            raise CheckpointCorrupt(
                f"{self.source} ends within chunk {index} ({count} of {len(view)} bytes)",
                path=self.source,
                chunk=index,
            )
        if blake3(view).hexdigest() != self.manifest.chunks[index]:
            raise CheckpointCorrupt(
                f"{self.source}: chunk {index} (bytes from {index * CHUNK_SIZE}) does not match "
                "its digest",
                path=self.source,
                chunk=index,
            )


def open_manifest(
    raw: bytes, source: str, location: Location | None, digest: str | None, data_size: int
) -> Manifest:
    """Return the manifest in ``raw`` if it is that of the epoch at ``location``.

    Parameters
    ----------
    raw
        Content of the manifest file.
    source
        Names the epoch in errors.
    location
        Where it was found; None if that says nothing.
    digest
        What its digest must be, if that is known from elsewhere.
    data_size
        Bytes that the data file has.

    Raises
    ------
    CheckpointCorrupt
        It is damaged, of another epoch or not the one asked for, or the data has another size.
    """
    manifest = decode(raw, f"{source}/{MANIFEST_FILE}")
    epoch = manifest.epoch
    found = Location.of(epoch.session_id, epoch.token, epoch.seq, epoch.epoch_id)
    if location is not None and found != location:
        raise CheckpointCorrupt(f"{source} holds the manifest of another epoch", path=source)
    if digest is not None and manifest.digest != digest:
        raise CheckpointCorrupt(
            f"{source} holds digest {manifest.digest}, expected {digest}", path=source
        )
    if manifest.data_size != data_size:
        raise CheckpointCorrupt(
            f"{source}/{manifest.data_file} has {data_size} bytes, "
            f"its manifest says {manifest.data_size}",
            path=source,
        )
    return manifest


def _bytes_of(view: memoryview, region: Region) -> memoryview:
    if view.readonly or not view.c_contiguous or view.nbytes != region.length:
        raise CheckpointError(
            f"region {region.key!r} needs a writable contiguous buffer of {region.length} bytes"
        )
    return view.cast("B") if view.nbytes else memoryview(bytearray())
