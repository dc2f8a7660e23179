"""Memory pools: names and figures that programs ask for.

All device memory comes from one arena on the server, whose addresses depend on the order of
calls alone. So pools shape nothing there: they are kept here, and end with the process. Only
the default one of each device has a handle that every process of a session knows.

The figures are what CUDA would say, but for one thing: memory above the threshold is given up
when it is freed, not at the next synchronisation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from outlast.cuda_types import CUmemAllocationType, CUmemLocationType, CUmemPool_attribute, CUresult
from outlast.session.ids import default_pool
from outlast.shim.failure import CallFailure, require
from outlast.shim.handles import as_int
from outlast.shim.objects import Device

#: What a pool gets from its device at once.
RESERVE = 32 << 20  # bytes

_NAME = CUmemPool_attribute
#: How freed memory may be used again. Here it always may, whatever a program says.
_REUSE = (
    _NAME.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
    _NAME.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    _NAME.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
)
_THRESHOLD = _NAME.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


@dataclass(eq=False, slots=True)
class MemPool:
    """A pool of one device. The figures change under the lock of its table."""

    handle: int
    device: Device
    #: Bytes it may hold; 0 for what the device has.
    max_size: int = 0
    #: Bytes kept when they are free.
    threshold: int = 0
    used: int = 0  # bytes
    used_high: int = 0
    reserved: int = 0  # bytes
    reserved_high: int = 0
    reuse: dict[int, int] = field(default_factory=lambda: {int(name): 1 for name in _REUSE})
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int) -> None:
        """Count an allocation that is about to be made; OUT_OF_MEMORY beyond the maximum."""
        with self.lock:
            used = self.used + size
            fits = not self.max_size or used <= self.max_size
            require(fits, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
            self.used = used

    def took(self) -> None:
        """Note that the allocation was made."""
        with self.lock:
            self.used_high = max(self.used_high, self.used)
            self.reserved = max(self.reserved, _up(self.used))
            self.reserved_high = max(self.reserved_high, self.reserved)

    def give(self, size: int) -> None:
        """Count an allocation that was freed, or never made."""
        with self.lock:
            self.used -= size
            self._trim(self.threshold)

    def trim(self, keep: int) -> None:
        """Give up what is free beyond ``keep`` bytes."""
        with self.lock:
            self._trim(keep)

    def _trim(self, keep: int) -> None:
        self.reserved = min(self.reserved, _up(max(self.used, keep)))

    def attribute(self, name: int) -> int:
        """Return an attribute, else INVALID_VALUE."""
        values = {
            **self.reuse,
            _THRESHOLD: self.threshold,
            _NAME.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: self.reserved,
            _NAME.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: self.reserved_high,
            _NAME.CU_MEMPOOL_ATTR_USED_MEM_CURRENT: self.used,
            _NAME.CU_MEMPOOL_ATTR_USED_MEM_HIGH: self.used_high,
            _NAME.CU_MEMPOOL_ATTR_ALLOCATION_TYPE: int(
                CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            ),
            _NAME.CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: 0,
            _NAME.CU_MEMPOOL_ATTR_LOCATION_ID: self.device.ordinal,
            _NAME.CU_MEMPOOL_ATTR_LOCATION_TYPE: int(CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE),
            _NAME.CU_MEMPOOL_ATTR_MAX_POOL_SIZE: self.max_size,
            _NAME.CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED: 0,
        }
        require(name in values)
        return values[name]

    def set_attribute(self, name: int, value: int) -> None:
        """Set an attribute that can be set; of a high-water mark, set it back to now."""
        with self.lock:
            if name in self.reuse:
                self.reuse[name] = int(bool(value))
            elif name == _THRESHOLD:
                require(0 <= value < 1 << 64)
                self.threshold = value
            else:
                require(value == 0)
                if name == _NAME.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
                    self.reserved_high = self.reserved
                else:
                    require(name == _NAME.CU_MEMPOOL_ATTR_USED_MEM_HIGH)
                    self.used_high = self.used


class PoolTable:
    """Live pools by handle, and the current one of each device."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._defaults = {d.ordinal: MemPool(default_pool(d.ordinal), d) for d in devices}
        self._current = dict(self._defaults)
        self._rows = {pool.handle: pool for pool in self._defaults.values()}

    def get(self, handle: Any) -> MemPool:
        """Return a pool; INVALID_VALUE if there is none of this handle."""
        pool = self._rows.get(as_int(handle))
        if pool is None:
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_VALUE)
        return pool

    def default(self, device: Device) -> MemPool:
        """Return the pool that a device always has."""
        return self._defaults[device.ordinal]

    def current(self, device: Device) -> MemPool:
        """Return the pool that allocations of a device come from."""
        return self._current[device.ordinal]

    def set_current(self, pool: MemPool) -> None:
        """Let allocations of its device come from ``pool``."""
        self._current[pool.device.ordinal] = pool

    def add(self, pool: MemPool) -> None:
        """Enter a new pool."""
        self._rows[pool.handle] = pool

    def remove(self, pool: MemPool) -> None:
        """Drop a pool, INVALID_VALUE for a default one. What came from it stays."""
        require(pool is not self.default(pool.device))
        del self._rows[pool.handle]
        if self.current(pool.device) is pool:
            self.set_current(self.default(pool.device))


def _up(size: int) -> int:
    return -(-size // RESERVE) * RESERVE
