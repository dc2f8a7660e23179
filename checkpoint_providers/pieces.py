"""Bytes on their way between a device and a store, in pieces: what is next is read ahead.

No buffer is larger than a piece, however large the regions are.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from outlast.checkpoint_providers.snapshot import RegionBuffer, RegionSource, Snapshot
from outlast.errors import CheckpointCancelled

T = TypeVar("T")

#: Bytes that are read at once.
PIECE: Final = 16 << 20  # 16 MiB
#: Pieces in memory at once: one that is read, one in use, and the end of the one before.
_SLOTS: Final = 3

#: Of one source: where the bytes begin, and how many.
Part = tuple[RegionSource, int, int]


def memory(size: int) -> memoryview:
    """Return fresh memory, in huge pages where the system has them."""
    block = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(block)[:size]


def ahead(name: str, jobs: Iterator[Callable[[], T]]) -> Generator[T]:
    """Yield what jobs return, in order; the next one is done, in a thread, while one is used."""
    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        pending: Future[T] | None = None
        for job in jobs:
            following = pool.submit(job)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()


def views(snapshot: Snapshot) -> Generator[memoryview]:
    """Yield the bytes of all regions in their order.

    A view of a source's bytes is good until `PIECE` more bytes of sources were yielded.

    Raises
    ------
    CheckpointError
        A source cannot be read.
    """
    if not any(isinstance(region, RegionSource) for region in snapshot.regions):
        for region in snapshot.regions:
            assert isinstance(region, RegionBuffer)
            yield region.view()
        return
    reading = _Reading(snapshot)
    groups = ahead("checkpoint-read", reading.jobs())
    try:
        for group in groups:
            yield from group
    finally:
        reading.stopped.set()
        groups.close()


class _Reading:
    """Takes the sources of a snapshot in their order into memory."""

    def __init__(self, snapshot: Snapshot) -> None:
        #: What is read now is wanted no more.
        self.stopped = threading.Event()
        self._snapshot = snapshot
        self._left = sum(r.nbytes for r in snapshot.regions if isinstance(r, RegionSource))

    def jobs(self) -> Iterator[Callable[[], list[memoryview]]]:
        """Yield what reads a piece, with the regions between that are in memory already."""
        if not self._left:
            self._tell()
        slots = [memory(min(PIECE, self._left)) for _ in range(_SLOTS)]
        number, room = 0, self._room()
        parts: list[memoryview | Part] = []
        for region in self._snapshot.regions:
            if isinstance(region, RegionBuffer):
                parts.append(region.view())
                continue
            start = 0
            while start < region.nbytes:
                count = min(region.nbytes - start, room)
                parts.append((region, start, count))
                start += count
                room -= count
                self._left -= count
                if not room:
                    yield self._job(parts, slots[number % _SLOTS])
                    number, parts = number + 1, []
                    room = self._room()
        if parts:
            yield self._job(parts, slots[number % _SLOTS])

    def _room(self) -> int:
        """Return how much the next piece takes: all that is left, if that may be held."""
        return self._left if 0 < self._left <= self._snapshot.hold else PIECE

    def _job(
        self, parts: list[memoryview | Part], slot: memoryview
    ) -> Callable[[], list[memoryview]]:
        size = sum(part[2] for part in parts if isinstance(part, tuple))
        last = size > 0 and not self._left

        def read() -> list[memoryview]:
            target = slot if size <= len(slot) else memory(size)
            done = []
            for part in parts:
                if isinstance(part, tuple):
                    view, target = target[: part[2]], target[part[2] :]
                    self._fill(part, view)
                    done.append(view)
                else:
                    done.append(part)
            if last:
                self._tell()
            return done

        return read

    def _tell(self) -> None:
        if self._snapshot.done is not None:
            self._snapshot.done()

    def _fill(self, part: Part, target: memoryview) -> None:
        region, start, count = part
        for offset in range(0, count, PIECE):
            if self.stopped.is_set():
                raise CheckpointCancelled("nobody wants what is read")
            region.read(start + offset, target[offset : offset + PIECE])
