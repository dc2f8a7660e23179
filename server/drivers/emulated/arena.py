"""A device's memory: a fixed range of addresses of which pages are mapped in and out.

The address of an allocation is a pure function of the set of live allocations (the lowest gap
that fits), so a process that restores this set goes on exactly as the old one would have.
Module variables are allocations like any other, made in the order of their declaration
when the module is loaded.

The page map has a byte for every page of all devices; a device's kernels look into its own map
before each access, and only the engine changes it, in issue order: what was launched before a
free still runs on mapped memory. The exception are addresses that a program reserves and maps
memory to itself (`vmm`). Other devices that may use this one's memory have it in their maps too.

All memory lies in one sparse file without a name, at the offsets of its addresses: like a GPU's
it lives as long as any process has a descriptor of it, and is mapped by whoever takes it over.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from outlast.errors import CheckpointError, ConfigError, RestoreFailed
from outlast.server.drivers.emulated import pages
from outlast.server.drivers.emulated.engine import Engine
from outlast.server.drivers.emulated.runtime import (
    BARRIER_WORDS,
    BARRIERS,
    MATRIX_BYTES,
    MAX_THREADS,
    WORKER,
    WORKER_FIELDS,
)
from outlast.server.drivers.first_fit import FirstFit

PAGE = 4096  # bytes
BASE = 0x1000_0000_0000
ARENA_SIZE = 1 << 40  # bytes for each device
GUARD = 2 << 20  # bytes at the start that are never mapped: null pointers plus an offset
SCRATCH = 1 << 30  # bytes at the end: windows of shared and local memory, parameters
SHARED_WINDOW = 1 << 20  # bytes
PARAMETER_WINDOW = 64 << 10  # bytes
LOCAL_WINDOW = 512 << 20  # bytes
FRAMES = 1 << 30  # bytes for paused threads, outside the arena
_GROWTH = 256 << 20  # bytes made accessible at a time


@dataclass(slots=True)
class Allocation:
    """A live range of device memory."""

    address: int
    #: Bytes asked for.
    size: int
    #: ``alloc`` or ``global``.
    kind: str
    #: Handle of the context that owns it.
    context: int

    @property
    def pages(self) -> int:
        """Pages it owns, whole."""
        return -(-self.size // PAGE)


class Arena:
    """The memory of one device.

    Parameters
    ----------
    base, size
        Its range of addresses.
    total
        Bytes of memory.
    span
        The addresses of all devices; by default there is one.

    Raises
    ------
    RestoreFailed
        Something else has the address range: only a new process can get it.
    """

    def __init__(
        self, engine: Engine, *, base: int, size: int, total: int, span: range | None = None
    ) -> None:
        if base % PAGE or size % PAGE or not 0 < total <= size - GUARD - SCRATCH:
            raise ConfigError(f"{total} bytes of memory do not fit an arena of {size} bytes")
        self._engine = engine
        self.base, self.size, self.total = base, size, total
        self.used = 0
        self._scratch = base + size - SCRATCH
        pages.reserve(size, at=base)
        self._span = span if span is not None else range(base, base + size)
        self._page_map = pages.zeros(len(self._span) // PAGE)
        #: Arenas of devices that may use this one's memory.
        self._viewers: list[Arena] = []
        self._frames = pages.zeros(FRAMES)
        self._use_file(self._make_file())
        self._free = FirstFit(base + GUARD, self._scratch)
        self.live: dict[int, Allocation] = {}
        self._order: list[int] = []
        self._allow(self._scratch, SHARED_WINDOW + PARAMETER_WINDOW + LOCAL_WINDOW)
        windows = (SHARED_WINDOW + PARAMETER_WINDOW + LOCAL_WINDOW) // PAGE
        ctypes.memset(self._entry(self._scratch), 1, windows)
        self._worker = self._make_worker()

    @property
    def worker(self) -> int:
        """Address of the worker block that kernels of this device get."""
        return ctypes.addressof(self._worker)

    def set_printf(self, function: int) -> None:
        """Name the native function that kernels print with."""
        self._worker[WORKER["printf"]] = function

    def _make_worker(self) -> ctypes.Array[ctypes.c_uint64]:
        lists = MAX_THREADS * 8
        barriers = 4 * BARRIERS * BARRIER_WORDS
        matrices = MAX_THREADS * MATRIX_BYTES
        self._lists = ctypes.create_string_buffer(lists * 6 + barriers + matrices)
        first = ctypes.addressof(self._lists)
        worker = (ctypes.c_uint64 * len(WORKER_FIELDS))()
        values = {
            "params": self._scratch + SHARED_WINDOW,
            "pagemap": self._page_map,
            "arena_base": self._span.start,
            "pages": len(self._span) // PAGE,
            "shared_base": self._scratch,
            "local_base": self._scratch + SHARED_WINDOW + PARAMETER_WINDOW,
            "error": self._engine.error_address,
            "frame_base": self._frames,
            "frame_end": self._frames + FRAMES,
            "frame_cursor": self._frames,
            "handles": first,
            "outbox": first + lists,
            "inbox": first + 2 * lists,
            "states": first + 3 * lists,
            "arrived": first + 4 * lists,
            "ballot": first + 4 * lists + lists // 2,
            "keys": first + 5 * lists,
            "barriers": first + 6 * lists,
            "matrix": first + 6 * lists + barriers,
        }
        for name, value in values.items():
            worker[WORKER[name]] = value
        return worker

    # -- allocations ---------------------------------------------------------

    def allocate(self, size: int, kind: str, context: int, at: int | None = None) -> int | None:
        """Allocate zeroed memory, at the first fit or exactly ``at``; None if there is none."""
        block = Allocation(0, size, kind, context)
        length = block.pages * PAGE
        if self.used + length > self.total:
            return None
        if at is None:
            address = self._free.take(length)
        else:
            address = at if at % PAGE == 0 and self._free.take_at(at, length) else None
        if address is None:
            return None
        if not self._allow(address, length):
            self._free.release(address, length)
            return None
        block.address = address
        self.used += length
        self.live[address] = block
        self._order.insert(bisect_left(self._order, address), address)
        for arena in (self, *self._viewers):
            self._engine.map(0, arena._entry(address), block.pages)
        return address

    def release(self, address: int) -> None:
        """Free an allocation: its address at once, its pages when earlier work is done."""
        block = self.live.pop(address)
        del self._order[bisect_left(self._order, address)]
        length = block.pages * PAGE
        self.used -= length
        self._free.release(address, length)
        for viewer in self._viewers:
            viewer._hide(block)
        self._unmap(address, length)

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds ``address``."""
        index = bisect_right(self._order, address) - 1
        if index < 0:
            return None
        block = self.live[self._order[index]]
        return block if address < block.address + block.size else None

    def holds(self, address: int, size: int) -> bool:
        """Return whether a range lies in one allocation."""
        block = self.find(address)
        return block is not None and address + size <= block.address + block.size

    def allocations(self) -> list[Allocation]:
        """Return every live allocation, by address."""
        return [self.live[address] for address in self._order]

    def view(self, address: int, size: int) -> memoryview:
        """Return the bytes of a live range, writable.

        Raises
        ------
        CheckpointError
            The range is not in one allocation.
        """
        if not self.holds(address, size):
            raise CheckpointError(f"no live device memory at {address:#x} ({size} bytes)")
        return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")

    def readable(self, address: int, size: int) -> int:
        """Return how many bytes from ``address`` the host may read, up to ``size``."""
        windows = self._scratch + SHARED_WINDOW + PARAMETER_WINDOW + LOCAL_WINDOW
        if self._scratch <= address < windows:
            return min(size, windows - address)
        block = self.find(address)
        return min(size, block.address + block.size - address) if block else 0

    # -- other devices -------------------------------------------------------

    def admit(self, other: Arena) -> None:
        """Let another device's kernels use this memory, behind what was issued so far."""
        self._viewers.append(other)
        for block in self.allocations():
            self._engine.map(0, other._entry(block.address), block.pages)

    def dismiss(self, other: Arena) -> None:
        """Let another device's kernels use this memory no more, behind what was issued so far."""
        self._viewers.remove(other)
        for block in self.allocations():
            other._hide(block)

    def _hide(self, block: Allocation) -> None:
        """Take another device's allocation out of the page map."""
        self._engine.unmap(0, self._entry(block.address), block.pages, block.address, 0, 0, 0)

    # -- virtual memory ------------------------------------------------------

    def reserve(self, size: int, alignment: int, hint: int) -> int | None:
        """Take addresses without memory, at ``hint`` if that is free; None if there are none."""
        if hint % alignment == 0 and self._free.take_at(hint, size):
            return hint
        found = self._free.take(size + alignment)
        if found is None:
            return None
        address = -(-found // alignment) * alignment
        for start, end in ((found, address), (address + size, found + size + alignment)):
            if start < end:
                self._free.release(start, end - start)
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Give reserved addresses back, of which none has memory."""
        # What earlier work may still write there must not show in the next allocation.
        self._unmap(address, size)
        self._free.release(address, size)

    def show(self, address: int, size: int, accessible: bool) -> None:
        """Let kernels use reserved addresses from now on, or not; also those that run."""
        ctypes.memset(self._entry(address), int(accessible), size // PAGE)

    def close(self) -> None:
        """Give the addresses back; the engine must have ended."""
        for address, size in (
            (self.base, self.size),
            (self._page_map, len(self._span) // PAGE),
            (self._frames, FRAMES),
        ):
            pages.give_back(address, size)
        os.close(self._file)

    # -- the file ------------------------------------------------------------

    def share(self) -> int:
        """Return a descriptor of the file that all memory lies in; it is the caller's."""
        return os.dup(self._file)

    def adopt(self, descriptor: int, live: Iterable[tuple[int, int]]) -> bool:
        """Go on with the file of an arena like this one, which stays the caller's.

        Parameters
        ----------
        descriptor
            Of the file.
        live
            Address and bytes of what is still wanted in it; everywhere else are zeros then.

        Returns
        -------
        bool
            False if it cannot be; then this arena is good for nothing.
        """
        start = self.base
        try:
            if self.live or os.fstat(descriptor).st_size != self._scratch - self.base:
                return False
            file = os.dup(descriptor)
            os.close(self._file)
            self._use_file(file)
            for address, size in sorted([*live, (self._scratch, 0)]):
                pages.clear(file, start - self.base, max(0, address - start))
                start = address + -(-size // PAGE) * PAGE
        except OSError:
            return False
        return True

    def restore_pages(self, address: int, size: int) -> None:
        """Have memory of the file, all zeros, where a program had mapped memory of its own.

        Raises
        ------
        OSError
            The system refuses.
        """
        pages.clear(self._file, address - self.base, size)
        pages.map_file(address, size, self._file, address - self.base)

    def _make_file(self) -> int:
        """Return a descriptor of a file with room for all but the scratch memory."""
        try:
            file = os.memfd_create("outlast-arena", os.MFD_CLOEXEC)
            os.ftruncate(file, self._scratch - self.base)
        except OSError as error:
            raise RestoreFailed(f"no file for device memory: {error}") from error
        return file

    def _use_file(self, file: int) -> None:
        """Map a file, of which nothing may be used yet."""
        self._file = file
        size = self._scratch - self.base
        try:
            pages.map_file(self.base, size, file, usable=False)
        except OSError as error:
            raise RestoreFailed(f"device memory cannot be mapped: {error}") from error
        self._accessible = self.base + GUARD

    def _unmap(self, address: int, size: int) -> None:
        entries, count = self._entry(address), size // PAGE
        self._engine.unmap(0, entries, count, address, size, self._file, address - self.base)

    def _entry(self, address: int) -> int:
        """Return the address of a page's entry in the page map."""
        return self._page_map + (address - self._span.start) // PAGE

    def _allow(self, address: int, size: int) -> bool:
        """Let the process touch a range. Access only ever grows: the page map is the guard."""
        end = address + size
        if end <= self._accessible:
            return True
        if address > self._accessible + _GROWTH:
            return pages.allow(address, size)
        end = min(max(end, self._accessible + _GROWTH), max(end, self._scratch))
        if not pages.allow(self._accessible, end - self._accessible):
            return False
        self._accessible = end
        return True
