"""Host memory that CUDA calls pinned: allocated here or registered by the program.

Nothing is pinned for real: the device is elsewhere. What counts is that the program may name
these ranges, that wrong names get CUDA's errors, and that memory of ours lasts as long as a
copy that uses it, even if the program frees it meanwhile.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from dataclasses import dataclass

from outlast.cuda_types import CUresult
from outlast.shim.failure import CallFailure, require
from outlast.shim.objects import Context


@dataclass(frozen=True, slots=True, eq=False)
class PinnedRange:
    """A range of host memory."""

    address: int
    size: int  # bytes
    flags: int
    context: Context
    #: What holds memory that was allocated here; None if the program registered its own.
    memory: mmap.mmap | None = None

    @property
    def end(self) -> int:
        """First address behind the range."""
        return self.address + self.size


class PinnedTable:
    """Live pinned ranges, which never overlap, found by any address inside them."""

    def __init__(self) -> None:
        self._by_address: dict[int, PinnedRange] = {}
        self._addresses: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._addresses)

    def allocate(self, size: int, flags: int, context: Context) -> PinnedRange:
        """Return fresh zeroed memory, which begins at a page; OUT_OF_MEMORY if there is none."""
        try:
            # Private: a forked child has a copy of its own, as of any other memory.
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise CallFailure(CUresult.CUDA_ERROR_OUT_OF_MEMORY) from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        made = PinnedRange(address, size, flags, context, memory)
        with self._lock:
            self._add(made)
        return made

    def register(self, address: int, size: int, flags: int, context: Context) -> None:
        """Enter the program's own memory.

        HOST_MEMORY_ALREADY_REGISTERED if it overlaps registered memory, INVALID_VALUE if
        it overlaps memory that was allocated here.
        """
        with self._lock:
            place = bisect.bisect_left(self._addresses, address + size)
            before = self._by_address[self._addresses[place - 1]] if place else None
            if before is not None and before.end > address:
                require(before.memory is None)
                raise CallFailure(CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
            self._add(PinnedRange(address, size, flags, context))

    def find(self, address: int) -> PinnedRange | None:
        """Return the range that contains ``address``."""
        with self._lock:
            place = bisect.bisect_right(self._addresses, address)
            if not place:
                return None
            found = self._by_address[self._addresses[place - 1]]
        return found if address < found.end else None

    def at(self, address: int) -> PinnedRange | None:
        """Return the range that begins at ``address``."""
        return self._by_address.get(address)

    def holds(self, start: int, end: int) -> bool:
        """Return whether one range contains all of another."""
        found = self.find(start)
        return found is not None and end <= found.end

    def view(self, address: int, size: int) -> memoryview | None:
        """Return bytes of memory that was allocated here; None if the address is no such.

        The view keeps the memory mapped, whatever becomes of the range.
        """
        found = self.find(address) if self._addresses else None
        if found is None or found.memory is None:
            return None
        require(address + size <= found.end)
        start = address - found.address
        return memoryview(found.memory)[start : start + size]

    def remove(self, address: int) -> None:
        """Drop the range that begins at ``address``; unused memory of ours goes with it."""
        with self._lock:
            self._drop(address)

    def drop_context(self, context: Context) -> None:
        """Drop everything that a context owns."""
        with self._lock:
            for row in [r for r in self._by_address.values() if r.context is context]:
                self._drop(row.address)

    def _add(self, row: PinnedRange) -> None:
        bisect.insort(self._addresses, row.address)
        self._by_address[row.address] = row

    def _drop(self, address: int) -> None:
        del self._by_address[address]
        del self._addresses[bisect.bisect_left(self._addresses, address)]
