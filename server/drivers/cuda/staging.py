"""Pinned host memory that copies go through: chunks of 1 MiB, lent and taken back.

A large copy has a chunk of its own; small ones of one stream share one. A chunk comes back
once the device has passed the last copy through it. Large reads are answered with the
chunk's own memory, which comes back when nobody holds it any more.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import numpy as np

from outlast.server.drivers.cuda.objects import Mark, Stream
from outlast.server.drivers.cuda.pinned import PinnedMemory

CHUNK = 1 << 20  # bytes
#: Copies of at most this size share a chunk.
SMALL = 64 << 10  # bytes
_ALIGNMENT = 256  # bytes
#: Chunks in one registration, and how many registrations there are at first.
BLOCK = 16
FIRST_BLOCKS = 4
#: So many do as long as the device goes on: with more, a chunk is waited for first.
ENOUGH_BLOCKS = 16
MOST_BLOCKS = 128
#: How long it is. A stream may stand still until a later call lets it go on.
PATIENCE = 0.01  # seconds
_LOOK = 200e-6  # seconds


class Chunk:
    """A megabyte of pinned memory."""

    __slots__ = ("_array", "address", "used", "view")

    def __init__(self, block: PinnedMemory, offset: int) -> None:
        self.address = block.address + offset
        self.view = block.view(offset, CHUNK)
        self._array = np.frombuffer(self.view, np.uint8)
        #: Bytes that small copies have taken.
        self.used = 0

    def fill(self, data: memoryview) -> None:
        """Copy ``data`` to the chunk's begin, without the GIL: others have work to do."""
        np.copyto(self._array[: len(data)], np.frombuffer(data, np.uint8))


class Staging:
    """The chunks of one worker.

    Parameters
    ----------
    cuda : Any
        `cuda.bindings.driver`; a context is current.
    mark : callable
        Marks the place where a stream is now.
    finished : callable
        Tells whether a mark is passed.
    """

    def __init__(
        self, cuda: Any, mark: Callable[[Stream], Mark], finished: Callable[[Mark], bool]
    ) -> None:
        self._cuda = cuda
        self._mark = mark
        self._finished = finished
        self._free: list[Chunk] = []
        #: Lent until the mark is passed.
        self._lent: deque[tuple[Mark, Chunk]] = deque()
        self._blocks: list[PinnedMemory] = []
        self._readers: dict[int, Any] = {}
        for _ in range(FIRST_BLOCKS):
            self._grow()

    def place(self, stream: Stream, size: int) -> tuple[Chunk, int]:
        """Return room for a small copy in ``stream``: a chunk that stays the stream's, and where.

        Raises
        ------
        MemoryError
            There is no pinned memory left.
        """
        chunk: Chunk | None = stream.chunk
        if chunk is not None and chunk.used + size <= CHUNK:
            offset = chunk.used
        else:
            self.release(stream)
            chunk = stream.chunk = self.take()
            offset = 0
        chunk.used = offset + size + (-size % _ALIGNMENT)
        return chunk, offset

    def release(self, stream: Stream) -> None:
        """Take back the chunk that a stream's small copies share, once they are over."""
        chunk, stream.chunk = stream.chunk, None
        if chunk is None:
            return
        mark = self._mark(stream) if stream.dirty else stream.mark
        if mark is None or mark.done:
            self._give(chunk)
        else:
            self.lend(chunk, mark)

    def take(self) -> Chunk:
        """Return an unused chunk; it waits for one only if there can be no more memory.

        Raises
        ------
        MemoryError
            All memory is held by replies.
        """
        if not self._free:
            self._collect()
        if not self._free and len(self._blocks) >= ENOUGH_BLOCKS:
            self._linger()
        if not self._free and len(self._blocks) < MOST_BLOCKS:
            self._grow()
        while not self._free:
            if not self._lent:
                raise MemoryError("all staging memory is in use")
            mark, _ = self._lent[0]
            self._cuda.cuEventSynchronize(mark.raw)
            self._collect()
        return self._free.pop()

    def lend(self, chunk: Chunk, mark: Mark) -> None:
        """Let a chunk come back once ``mark`` is passed."""
        self._lent.append((mark, chunk))

    def reader(self, chunk: Chunk, size: int, mark: Mark) -> memoryview:
        """Return a view of a chunk that holds it: it comes back when the view is gone."""
        array = np.frombuffer(chunk.view, np.uint8, size)
        key = id(array)

        def gone(_: object) -> None:
            self._readers.pop(key, None)
            self._lent.append((mark, chunk))

        self._readers[key] = weakref.ref(array, gone)
        return array.data

    def close(self) -> None:
        """Give the memory back; what views still hold stays to the end of the process."""
        self._collect()
        if self._lent or self._readers:
            return
        self._free.clear()
        while self._blocks:
            self._blocks.pop().close()

    def _linger(self) -> None:
        """Give the device a moment to be done with a chunk."""
        end = monotonic() + PATIENCE
        while self._lent and not self._free and monotonic() < end:
            sleep(_LOOK)
            self._collect()

    def _collect(self) -> None:
        for _ in range(len(self._lent)):
            mark, chunk = self._lent.popleft()
            if self._finished(mark):
                self._give(chunk)
            else:
                self._lent.append((mark, chunk))

    def _give(self, chunk: Chunk) -> None:
        chunk.used = 0
        self._free.append(chunk)

    def _grow(self) -> None:
        try:
            block = PinnedMemory(self._cuda, BLOCK * CHUNK)
        except MemoryError:
            if not self._blocks:
                raise
            return
        self._blocks.append(block)
        self._free += [Chunk(block, i * CHUNK) for i in reversed(range(BLOCK))]
