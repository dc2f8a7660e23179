"""Pinned memory into which the link reads long frames, so that the device takes them from there.

A piece of a large copy to the device comes from the network and goes to the device: read into
memory that the device can reach, it is copied once less.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from outlast.server.drivers.cuda.objects import Mark
from outlast.server.drivers.cuda.pinned import PinnedMemory
from outlast.server.drivers.cuda.staging import CHUNK

#: As many as a client's window has on its way. Without one that is free, other memory does.
CHUNKS = 32


class Receiving:
    """Chunks that are free again when nobody holds a view of them.

    Parameters
    ----------
    cuda : Any
        `cuda.bindings.driver`; a context is current.
    finished : callable
        Tells whether a mark is passed.
    """

    def __init__(self, cuda: Any, finished: Callable[[Mark], bool]) -> None:
        self._finished = finished
        self._free: deque[int] = deque()
        self._out: dict[int, Any] = {}
        #: What the device still reads: it is held until the mark is passed.
        self._held: deque[tuple[Mark, memoryview]] = deque()
        self._memory: PinnedMemory | None = None
        with suppress(MemoryError):
            self._memory = PinnedMemory(cuda, CHUNKS * CHUNK)
        self._base = self._memory.address if self._memory is not None else 0
        if self._base:
            self._free.extend(range(CHUNKS))

    def take(self, size: int) -> memoryview | None:
        """Return memory for a frame of this size, None if there is none (from any thread)."""
        if size != CHUNK:
            return None  # small ones would hold a whole chunk
        try:
            index = self._free.popleft()
        except IndexError:
            return None
        assert self._memory is not None
        array = np.frombuffer(self._memory.view(index * CHUNK, CHUNK), np.uint8)

        def gone(_: object) -> None:
            self._out.pop(index, None)
            self._free.append(index)

        self._out[index] = weakref.ref(array, gone)
        return array.data

    def address(self, data: memoryview) -> int:
        """Return where data lies if it came into this memory, else 0."""
        found: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        return found if self._base <= found < self._base + CHUNKS * CHUNK else 0

    def hold(self, data: memoryview, mark: Mark) -> None:
        """Keep data for the device until ``mark`` is passed."""
        held = self._held
        held.append((mark, data))
        while held and self._finished(held[0][0]):
            held.popleft()

    def close(self) -> None:
        """Give the memory back, unless somebody still has a part of it."""
        while self._held and self._finished(self._held[0][0]):
            self._held.popleft()
        if self._memory is not None and not self._out:
            self._free.clear()
            self._memory.close()
            self._memory, self._base = None, 0
