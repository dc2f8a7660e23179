"""A device's physical memory, by CUDA's calls for virtual memory.

All of it can be shared by a descriptor, and read by other devices on the bus where the
device can do that. Codes are ``CUresult`` values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlast.errors import ConfigError, RestoreFailed
from outlast.server.drivers.placement import GRANULE, Chunk


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of physical memory in this process."""

    handle: Any
    #: What it came by; the driver shares no memory that was shared with it. -1: made here.
    descriptor: int = -1


class PhysicalMemory:
    """Creates, maps and shares the memory of one device.

    Parameters
    ----------
    cuda
        Has what is used here of `cuda.bindings.driver`, by its names.
    device
        The device's ordinal.

    Raises
    ------
    ConfigError
        The device has no memory in units of `GRANULE`.
    """

    def __init__(self, cuda: Any, device: int) -> None:
        self._cuda = cuda
        kinds = cuda.CUmemAllocationHandleType
        self._descriptors = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._properties = self._describe(device)
        #: Who may use the memory, by ordinal.
        self._access = {device: self._allow(device, True)}
        option = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        code, granularity = cuda.cuMemGetAllocationGranularity(self._properties, option)
        if code or GRANULE % int(granularity):
            raise ConfigError(f"device {device} has no memory in units of {GRANULE} bytes")

    def _describe(self, device: int) -> Any:
        """Return the properties of the memory to create."""
        cuda = self._cuda
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = self._descriptors
        properties.location = self._location(device)
        attributes = cuda.CUdevice_attribute
        code, direct = cuda.cuDeviceGetAttribute(
            attributes.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device
        )
        if not code and direct:
            properties.allocFlags.gpuDirectRDMACapable = 1
        return properties

    def _allow(self, device: int, use: bool) -> Any:
        """Return what says that a device may use memory, or not."""
        cuda, flags = self._cuda, self._cuda.CUmemAccess_flags
        access = cuda.CUmemAccessDesc()
        access.location = self._location(device)
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if use else flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        )
        return access

    def _location(self, device: int) -> Any:
        location = self._cuda.CUmemLocation()
        location.type = self._cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = device
        return location

    def reserve(self, base: int, size: int) -> None:
        """Reserve exactly these addresses.

        Raises
        ------
        RestoreFailed
            They cannot be had in this process.
        """
        code, got = self._cuda.cuMemAddressReserve(size, GRANULE, base, 0)
        if code:
            reason = str(getattr(code, "name", int(code)))
        elif int(got) == base:
            return
        else:
            self._cuda.cuMemAddressFree(got, size)
            reason = f"something lies there, the driver offers {int(got):#x}"
        raise RestoreFailed(
            f"cannot reserve {size} bytes of device addresses at {base:#x}: {reason}"
        )

    def unreserve(self, base: int, size: int) -> None:
        """Give addresses back, of which none has memory."""
        self._cuda.cuMemAddressFree(base, size)

    def map(self, chunk: Chunk) -> tuple[int, Piece]:
        """Map fresh memory, which holds zeros; return a code and the memory."""
        code, handle = self._cuda.cuMemCreate(chunk.size, self._properties, 0)
        piece = Piece(handle)
        return int(code) or self._attach(chunk, piece), piece

    def take(self, chunk: Chunk, descriptor: int) -> tuple[int, Piece]:
        """Map the memory behind a descriptor, which stays the caller's; as `map` otherwise."""
        code, handle = self._cuda.cuMemImportFromShareableHandle(descriptor, self._descriptors)
        if code:
            return int(code), Piece(handle)
        piece = Piece(handle, os.dup(descriptor))
        return self._attach(chunk, piece), piece

    def unmap(self, chunk: Chunk, piece: Piece) -> None:
        """Unmap memory and give it up; nothing may use it any more."""
        self._cuda.cuMemUnmap(chunk.address, chunk.size)
        self._release(piece)

    def admit(self, device: int, chunks: Iterable[Chunk]) -> int:
        """Let another device use these chunks and what is mapped from now on.

        Returns a ``CUresult`` value; after a failure it may use nothing.
        """
        access = self._allow(device, True)
        for chunk in chunks:
            code = int(self._cuda.cuMemSetAccess(*chunk, [access], 1)[0])
            if code:
                self.expel(device, chunks)
                return code
        self._access[device] = access
        return 0

    def expel(self, device: int, chunks: Iterable[Chunk]) -> int:
        """Take that back. Returns a ``CUresult`` value."""
        self._access.pop(device, None)
        access, code = self._allow(device, False), 0
        for chunk in chunks:
            code = code or int(self._cuda.cuMemSetAccess(*chunk, [access], 1)[0])
        return code

    def share(self, piece: Piece) -> tuple[int, int]:
        """Return a code and a descriptor of memory, which is the caller's."""
        if piece.descriptor >= 0:
            return 0, os.dup(piece.descriptor)
        code, descriptor = self._cuda.cuMemExportToShareableHandle(
            piece.handle, self._descriptors, 0
        )
        return (int(code), -1) if code else (0, int(descriptor))

    def _release(self, piece: Piece) -> None:
        self._cuda.cuMemRelease(piece.handle)
        if piece.descriptor >= 0:
            os.close(piece.descriptor)

    def _attach(self, chunk: Chunk, piece: Piece) -> int:
        """Map memory, or give it up. Returns a ``CUresult`` value."""
        cuda, (address, size), handle = self._cuda, chunk, piece.handle
        code = int(cuda.cuMemMap(address, size, 0, handle, 0)[0])
        if not code:
            access = list(self._access.values())
            code = int(cuda.cuMemSetAccess(address, size, access, len(access))[0])
            if not code:
                return 0
            cuda.cuMemUnmap(address, size)
        self._release(piece)
        return code
