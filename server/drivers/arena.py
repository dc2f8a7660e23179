"""Device memory at addresses of our choice: one reserved range, physical chunks mapped into it.

`Placement` chooses the addresses; the arena puts memory behind them with CUDA's calls for
virtual memory. A freed range is given out again at once, but the work issued from then on is
ordered behind the work before the free, on the device: nothing here waits for it. Memory is
unmapped only when that work is done, because unmapping waits for nothing and would pull
it away from a running kernel.

Chunks in which nothing lives stay mapped for the next allocation, up to `KEPT` bytes; they count
as free, and all of them are given up before an allocation fails for want of memory.

CUDA clears physical memory before a process gets it, so no session sees another's data.
A range that is given out again within a session holds what it held, as with `cuMemAlloc`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.errors import ConfigError, RestoreFailed
from outlast.server.drivers.freed import FreedRanges
from outlast.server.drivers.placement import GRANULE, Block, Chunk, Placement

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
#: Bytes of empty chunks that stay mapped when there is no need for their memory.
KEPT = 256 << 20
#: How long an allocation that finds no memory waits for the work behind freed memory.
PATIENCE = 10.0  # seconds


class Fences(Protocol):
    """What an arena must know of the work on its device."""

    def fence(self) -> int:
        """Name all work issued so far, on all streams; the same number while nothing is issued.

        Numbers grow and are done in their order; 0 is always done.
        """

    def done(self, fence: int) -> bool:
        """Return whether that work is done."""

    def wait(self, fence: int, timeout: float) -> bool:
        """Block until that work is done; False after ``timeout`` seconds."""

    def order_after(self, fence: int) -> None:
        """Let all that is issued from now on, on any stream, run after that work."""


@dataclass(slots=True)
class Mapped:
    """A chunk with physical memory behind it."""

    chunk: Chunk
    handle: Any
    #: Behind it nothing uses the chunk, while it is empty.
    fence: int = 0


class Arena:
    """The memory of one device in one process. Its primary context must be current.

    Parameters
    ----------
    cuda
        Has what is used here of `cuda.bindings.driver`, by its names.
    device
        The device's ordinal.
    base, size
        The range of addresses, in bytes.
    fences
        Knows the work on the device.
    patience
        Seconds that an allocation waits for freed memory before it fails.

    Raises
    ------
    RestoreFailed
        The range cannot be had in this process.
    ConfigError
        The range or the device does not suit.
    """

    def __init__(
        self,
        cuda: Any,
        device: int,
        *,
        base: int,
        size: int,
        fences: Fences,
        patience: float = PATIENCE,
    ) -> None:
        self._cuda, self._fences, self._patience = cuda, fences, patience
        self._placement = Placement(base, size)
        self._properties = _properties(cuda, device)
        self._access = [_access(cuda, device)]
        self._mapped: dict[int, Mapped] = {}
        #: Those in which nothing lives, the first to be given up first.
        self._empty: OrderedDict[int, Mapped] = OrderedDict()
        self._reclaimable = 0
        self._freed = FreedRanges()
        option = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        code, granularity = cuda.cuMemGetAllocationGranularity(self._properties, option)
        if code or GRANULE % int(granularity):
            raise ConfigError(f"device {device} has no memory in units of {GRANULE} bytes")
        self._reserve(base, size)

    def _reserve(self, base: int, size: int) -> None:
        code, got = self._cuda.cuMemAddressReserve(size, GRANULE, base, 0)
        if code:
            raise RestoreFailed(
                f"cannot reserve {size} bytes of device addresses at {base:#x}: {_name(code)}"
            )
        if int(got) != base:
            self._cuda.cuMemAddressFree(got, size)
            raise RestoreFailed(
                f"cannot reserve {size} bytes of device addresses at {base:#x}: "
                f"something lies there, the driver offers {int(got):#x}"
            )

    # -- allocations ---------------------------------------------------------

    def allocate(self, size: int, at: int | None = None) -> tuple[int, int]:
        """Allocate memory, where the placement says or exactly ``at``.

        Returns
        -------
        tuple[int, int]
            A ``CUresult`` value and the address; 2 and 0 if there is no such memory.
        """
        if size <= 0:
            return INVALID_VALUE, 0
        placement = self._placement
        address = at
        if address is None:
            address = placement.place(size)
        elif not placement.place_at(address, size):
            address = None
        if address is None:
            return OUT_OF_MEMORY, 0
        code = self._back(placement.chunks(address))
        if code:
            placement.remove(address, rest=False)
            return code, 0
        if self._freed:
            self._follow(address, placement.end_of(address))
        if self._reclaimable > KEPT:
            self.trim()
        return SUCCESS, address

    def release(self, address: int) -> int:
        """Free an allocation; it never waits. Returns a ``CUresult`` value."""
        placement = self._placement
        if not placement.starts(address):
            return INVALID_VALUE
        end, fence = placement.end_of(address), self._fences.fence()
        self._freed.settle(self._fences.done)
        self._freed.add(address, end, fence)
        for chunk in placement.remove(address):
            self._set_empty(self._mapped[chunk.address], fence)
        if self._reclaimable > KEPT:
            self.trim()
        return SUCCESS

    def find(self, address: int) -> Block | None:
        """Return the live allocation that holds ``address``."""
        return self._placement.find(address)

    def allocations(self) -> list[Block]:
        """Return every live allocation, by address."""
        return self._placement.blocks()

    def _follow(self, start: int, end: int) -> None:
        """Order what is issued from now on behind the work that may still use a range."""
        self._freed.settle(self._fences.done)
        fence = self._freed.fence(start, end)
        if fence:
            self._fences.order_after(fence)
            # All that is issued now follows the older fences too.
            self._freed.settle(lambda other: other <= fence)

    # -- physical memory -----------------------------------------------------

    @property
    def reclaimable(self) -> int:
        """Bytes of mapped chunks in which nothing lives: free memory."""
        return self._reclaimable

    @property
    def mapped(self) -> int:
        """Bytes of physical memory that are mapped."""
        return sum(mapped.chunk.size for mapped in self._mapped.values())

    def trim(self) -> None:
        """Give up empty chunks beyond `KEPT` bytes as far as their work is done; never waits."""
        while self._reclaimable > KEPT:
            first = next(iter(self._empty.values()))
            if not self._fences.done(first.fence):
                return
            self._unmap(first)

    def reclaim(self) -> None:
        """Give up all empty chunks, waiting a while for the work that may still use them."""
        if not self._empty:
            return
        fence = max(mapped.fence for mapped in self._empty.values())
        self._fences.wait(fence, self._patience)
        self._reclaim_done()

    def close(self) -> None:
        """Give memory and addresses back; the device must be idle."""
        for mapped in list(self._mapped.values()):
            if mapped.chunk.address not in self._empty:
                self._set_empty(mapped, 0)
            self._unmap(mapped)
        base, end = self._placement.base, self._placement.end
        self._cuda.cuMemAddressFree(base, end - base)

    def _back(self, chunks: list[Chunk]) -> int:
        """Put memory behind chunks, all or none. Returns a ``CUresult`` value."""
        taken: list[Mapped] = []
        for chunk in chunks:
            mapped = self._mapped.get(chunk.address)
            if mapped is None or mapped.chunk != chunk:
                code = self._make_room(chunk) or self._map(chunk)
                if code:
                    for other in taken:
                        self._set_empty(other, other.fence)
                    return code
                mapped = self._mapped[chunk.address]
            if self._empty.pop(chunk.address, None) is not None:
                self._reclaimable -= chunk.size
                taken.append(mapped)
        return SUCCESS

    def _make_room(self, chunk: Chunk) -> int:
        """Unmap what lies where a chunk has to be: others that were freed a moment ago."""
        for other in [m for m in self._empty.values() if m.chunk.overlaps(chunk)]:
            if not self._fences.wait(other.fence, self._patience):
                return OUT_OF_MEMORY
            self._unmap(other)
        return SUCCESS

    def _map(self, chunk: Chunk) -> int:
        """Map fresh memory; it is empty until somebody takes it. Returns a ``CUresult`` value."""
        code, handle = self._create(chunk.size)
        if code:
            return code
        cuda, (address, size) = self._cuda, chunk
        code = int(cuda.cuMemMap(address, size, 0, handle, 0)[0])
        if not code:
            code = int(cuda.cuMemSetAccess(address, size, self._access, len(self._access))[0])
            if code:
                cuda.cuMemUnmap(address, size)
        if code:
            cuda.cuMemRelease(handle)
            return code
        mapped = self._mapped[address] = Mapped(chunk, handle)
        self._set_empty(mapped, 0)
        return SUCCESS

    def _create(self, size: int) -> tuple[int, Any]:
        """Create physical memory; before there is none, give up what is free here."""
        code, handle = self._cuda.cuMemCreate(size, self._properties, 0)
        for give_up in (self._reclaim_done, self.reclaim):
            if code != OUT_OF_MEMORY or not self._empty:
                break
            give_up()
            code, handle = self._cuda.cuMemCreate(size, self._properties, 0)
        return int(code), handle

    def _reclaim_done(self) -> None:
        for mapped in list(self._empty.values()):
            if self._fences.done(mapped.fence):
                self._unmap(mapped)

    def _set_empty(self, mapped: Mapped, fence: int) -> None:
        mapped.fence = fence
        self._empty[mapped.chunk.address] = mapped
        self._reclaimable += mapped.chunk.size
        if mapped.chunk.size > KEPT:
            self._empty.move_to_end(mapped.chunk.address, last=False)

    def _unmap(self, mapped: Mapped) -> None:
        """Give up an empty chunk."""
        address, size = mapped.chunk
        del self._mapped[address], self._empty[address]
        self._reclaimable -= size
        self._cuda.cuMemUnmap(address, size)
        self._cuda.cuMemRelease(mapped.handle)


def _properties(cuda: Any, device: int) -> Any:
    """Describe the memory to create: on the device, to be shared by a descriptor."""
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kinds = cuda.CUmemAllocationHandleType
    properties.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.location = _location(cuda, device)
    attributes = cuda.CUdevice_attribute
    code, direct = cuda.cuDeviceGetAttribute(
        attributes.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device
    )
    if not code and direct:
        properties.allocFlags.gpuDirectRDMACapable = 1
    return properties


def _access(cuda: Any, device: int) -> Any:
    """Describe full access by a device."""
    access = cuda.CUmemAccessDesc()
    access.location = _location(cuda, device)
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _location(cuda: Any, device: int) -> Any:
    location = cuda.CUmemLocation()
    location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def _name(code: Any) -> str:
    return getattr(code, "name", f"error {int(code)}")
