"""Device memory the program may touch: allocations and module variables, by address."""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass

from outlast.cuda_types import CUresult
from outlast.shim.failure import CallFailure
from outlast.shim.objects import Context
from outlast.shim.pools import MemPool


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """A range of device memory."""

    address: int
    size: int  # bytes
    context: Context
    #: Handle of the module whose variable this is; 0 for memory of cuMemAlloc.
    module: int = 0
    #: Pool that it was allocated from; None for memory of cuMemAlloc.
    pool: MemPool | None = None

    @property
    def end(self) -> int:
        """First address behind the range."""
        return self.address + self.size


class AllocationTable:
    """Live allocations, found by any address inside them."""

    def __init__(self) -> None:
        self._by_address: dict[int, Allocation] = {}
        self._addresses: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, allocation: Allocation) -> None:
        """Enter an allocation."""
        with self._lock:
            if allocation.address not in self._by_address:
                bisect.insort(self._addresses, allocation.address)
            self._by_address[allocation.address] = allocation

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that contains ``address``."""
        with self._lock:
            allocation = self._by_address.get(address)
            if allocation is None:
                place = bisect.bisect_right(self._addresses, address)
                if not place:
                    return None
                allocation = self._by_address[self._addresses[place - 1]]
        return allocation if address < allocation.end else None

    def check_range(self, address: int, size: int) -> None:
        """Fail with INVALID_VALUE unless one allocation holds the whole range."""
        allocation = self.find(address)
        if allocation is None or size < 0 or address + size > allocation.end:
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_VALUE)

    def remove(self, address: int) -> None:
        """Drop the allocation that begins at ``address``."""
        with self._lock:
            self._drop(address)

    def drop_module(self, module: int) -> None:
        """Drop the variables of a module."""
        with self._lock:
            for allocation in [a for a in self._by_address.values() if a.module == module]:
                self._drop(allocation.address)

    def drop_context(self, context: Context) -> None:
        """Drop everything that a context owns."""
        with self._lock:
            for allocation in [a for a in self._by_address.values() if a.context is context]:
                self._drop(allocation.address)

    def _drop(self, address: int) -> None:
        allocation = self._by_address.pop(address)
        if allocation.pool is not None:
            allocation.pool.give(allocation.size)
        del self._addresses[bisect.bisect_left(self._addresses, address)]
