"""A device's memory: a fixed range of addresses of which pages are mapped in and out.

The address of an allocation is a pure function of the set of live allocations (the lowest gap
that fits), so a process that restores this set goes on exactly as the old one would have.
Module variables are allocations like any other, made in the order of their declaration
when the module is loaded.

The page map has a byte for every page; kernels look into it before each access, and only the
engine changes it, in issue order: what was launched before a free still runs on mapped memory.
The exception are addresses that a program reserves and maps memory to itself (`vmm`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from outlast.errors import CheckpointError, ConfigError, RestoreFailed
from outlast.server.drivers.emulated.engine import Engine
from outlast.server.drivers.emulated.runtime import MAX_THREADS, WORKER, WORKER_FIELDS
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

_MAP_FIXED, _MAP_FIXED_NOREPLACE, _MAP_NORESERVE = 0x10, 0x100000, 0x4000
_PROT_NONE, _PROT_RW = 0, mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


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

    Raises
    ------
    RestoreFailed
        Something else has the address range: only a new process can get it.
    """

    def __init__(self, engine: Engine, *, base: int, size: int, total: int) -> None:
        if base % PAGE or size % PAGE or not 0 < total <= size - GUARD - SCRATCH:
            raise ConfigError(f"{total} bytes of memory do not fit an arena of {size} bytes")
        self._engine = engine
        self.base, self.size, self.total = base, size, total
        self.used = 0
        self._scratch = base + size - SCRATCH
        _map(size, _PROT_NONE, at=base)
        self._page_map = _map(size // PAGE, _PROT_RW)
        self._frames = _map(FRAMES, _PROT_RW)
        self._accessible = base + GUARD
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
        self._lists = ctypes.create_string_buffer(lists * 5)
        first = ctypes.addressof(self._lists)
        worker = (ctypes.c_uint64 * len(WORKER_FIELDS))()
        values = {
            "params": self._scratch + SHARED_WINDOW,
            "pagemap": self._page_map,
            "arena_base": self.base,
            "pages": self.size // PAGE,
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
        self._engine.map(0, self._entry(address), block.pages)
        return address

    def release(self, address: int) -> None:
        """Free an allocation: its address at once, its pages when earlier work is done."""
        block = self.live.pop(address)
        del self._order[bisect_left(self._order, address)]
        length = block.pages * PAGE
        self.used -= length
        self._free.release(address, length)
        self._engine.unmap(0, self._entry(address), block.pages, address, length)

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
        self._engine.unmap(0, self._entry(address), size // PAGE, address, size)
        self._free.release(address, size)

    def show(self, address: int, size: int, accessible: bool) -> None:
        """Let kernels use reserved addresses from now on, or not; also those that run."""
        ctypes.memset(self._entry(address), int(accessible), size // PAGE)

    def close(self) -> None:
        """Give the addresses back; the engine must have ended."""
        for address, size in (
            (self.base, self.size),
            (self._page_map, self.size // PAGE),
            (self._frames, FRAMES),
        ):
            _libc.munmap(address, size)

    def _entry(self, address: int) -> int:
        """Return the address of a page's entry in the page map."""
        return self._page_map + (address - self.base) // PAGE

    def _allow(self, address: int, size: int) -> bool:
        """Let the process touch a range. Access only ever grows: the page map is the guard."""
        end = address + size
        if end <= self._accessible:
            return True
        if address > self._accessible + _GROWTH:
            return _protect(address, size)
        end = min(max(end, self._accessible + _GROWTH), max(end, self._scratch))
        if not _protect(self._accessible, end - self._accessible):
            return False
        self._accessible = end
        return True


def _protect(address: int, size: int) -> bool:
    """Make a range readable and writable; False if the system refuses."""
    return bool(_libc.mprotect(address, size, _PROT_RW) == 0)


def map_fixed(address: int, size: int, flags: int, descriptor: int = -1) -> None:
    """Map a file or fresh zeros over addresses that are ours already.

    Raises
    ------
    OSError
        The system refuses; what was there may be gone.
    """
    flags |= _MAP_FIXED | _MAP_NORESERVE
    if _libc.mmap(address, size, _PROT_RW, flags, descriptor, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _map(size: int, protection: int, at: int | None = None) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    if at is not None:
        flags |= _MAP_FIXED_NOREPLACE
    address = _libc.mmap(at, size, protection, flags, -1, 0)
    failed = address in (None, ctypes.c_void_p(-1).value)
    if not failed and at is not None and address != at:
        _libc.munmap(address, size)  # a kernel without FIXED_NOREPLACE took it as a hint
        failed = True
    if failed:
        where = f" at {at:#x}" if at is not None else ""
        reason = os.strerror(ctypes.get_errno())
        raise RestoreFailed(f"cannot reserve {size} bytes of addresses{where}: {reason}")
    return int(address)
