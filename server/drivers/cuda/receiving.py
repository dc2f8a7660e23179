"""Pinned memory into which the link reads long frames, so that the device takes them from there.

A piece of a large copy to the device comes from the network and goes to the device: read into
memory that the device can reach, it is copied once less.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from outlast.server.drivers.cuda.objects import Mark
from outlast.server.drivers.cuda.staging import CHUNK, pinned_view

#: As many as a client's window has on its way. Without one that is free, other memory does.
CHUNKS = 32
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE


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
        self._cuda = cuda
        self._finished = finished
        self._free: deque[int] = deque()
        self._out: dict[int, Any] = {}
        #: What the device still reads: it is held until the mark is passed.
        self._held: deque[tuple[Mark, memoryview]] = deque()
        error, address = cuda.cuMemHostAlloc(CHUNKS * CHUNK, _PORTABLE)
        self._base = 0 if error else int(address)
        if self._base:
            self._free.extend(self._base + i * CHUNK for i in range(CHUNKS))

    def take(self, size: int) -> memoryview | None:
        """Return memory for a frame of this size, None if there is none (from any thread)."""
        if size != CHUNK:
            return None  # small ones would hold a whole chunk
        try:
            address = self._free.popleft()
        except IndexError:
            return None
        array = np.frombuffer(pinned_view(address, CHUNK), np.uint8)

        def gone(_: object) -> None:
            self._out.pop(address, None)
            self._free.append(address)

        self._out[address] = weakref.ref(array, gone)
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
        if self._base and not self._out:
            self._free.clear()
            self._cuda.cuMemFreeHost(self._base)
            self._base = 0
