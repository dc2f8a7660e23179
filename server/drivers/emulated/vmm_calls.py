"""CUDA's calls for virtual memory: reserve addresses, create memory, map it, allow its use.

Reservations lie in the range of addresses of a device, for its kernels look there: in that of
the hint, else in that of the current context's device. Memory can be mapped and used there by
this device alone.

Like on a GPU, mapping and unmapping wait for nothing: a kernel that uses memory after it
was unmapped fails with 700, whenever it was launched.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from outlast import cuda_types
from outlast.server.drivers.emulated import vmm
from outlast.server.drivers.emulated.arena import PAGE
from outlast.server.drivers.emulated.memory_calls import MemoryCalls
from outlast.server.drivers.emulated.objects import Device
from outlast.server.drivers.emulated.results import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    Refusal,
    cuda_call,
    number,
)
from outlast.server.drivers.emulated.results import size as byte_count
from outlast.server.drivers.emulated.vmm import GRANULARITY, Mapping, Physical, Reservation

_PINNED = cuda_types.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = cuda_types.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
_DESCRIPTOR = cuda_types.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ_WRITE = cuda_types.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class VmmCalls(MemoryCalls):
    """Reservations, physical memory and mappings."""

    # The names that callers make their arguments with.
    CUdevice_attribute = cuda_types.CUdevice_attribute
    CUmemAccessDesc = vmm.CUmemAccessDesc
    CUmemAccess_flags = cuda_types.CUmemAccess_flags
    CUmemAllocationGranularity_flags = cuda_types.CUmemAllocationGranularity_flags
    CUmemAllocationHandleType = cuda_types.CUmemAllocationHandleType
    CUmemAllocationProp = vmm.CUmemAllocationProp
    CUmemAllocationType = cuda_types.CUmemAllocationType
    CUmemLocation = vmm.CUmemLocation
    CUmemLocationType = cuda_types.CUmemLocationType

    @cuda_call(1, always=True)
    def cuMemGetAllocationGranularity(self, prop: Any, option: Any) -> int:
        """Return what sizes and addresses must be multiples of."""
        self._check_properties(prop)
        if number(option) not in (0, 1):
            raise Refusal(INVALID_VALUE)
        return GRANULARITY

    # -- addresses -----------------------------------------------------------

    @cuda_call(1)
    def cuMemAddressReserve(self, size: Any, alignment: Any, addr: Any, flags: Any) -> int:
        """Reserve addresses, at a hint if they are free there."""
        count, step, hint = byte_count(size), number(alignment) or GRANULARITY, number(addr)
        if not count or count % PAGE or hint % PAGE or step & (step - 1) or number(flags):
            raise Refusal(INVALID_VALUE)
        step = max(step, GRANULARITY)
        device = self._device_of(hint)
        with self.engine.lock:
            address = device.arena.reserve(_whole(count), step, hint)
            if address is None:
                raise Refusal(OUT_OF_MEMORY)
            self._reservations[address] = Reservation(device, address, count)
        return address

    @cuda_call()
    def cuMemAddressFree(self, ptr: Any, size: Any) -> None:
        """Give reserved addresses back."""
        address, count = number(ptr), byte_count(size)
        with self.engine.lock:
            found = self._reservations.get(address)
            if found is None or found.size != count or found.mappings(address, count):
                raise Refusal(INVALID_VALUE)
            del self._reservations[address]
            found.device.arena.unreserve(address, _whole(count))

    # -- physical memory -----------------------------------------------------

    @cuda_call(1)
    def cuMemCreate(self, size: Any, prop: Any, flags: Any) -> int:
        """Create physical memory, of zeros."""
        count, device = byte_count(size), self._check_properties(prop)
        if not count or count % GRANULARITY or number(flags):
            raise Refusal(INVALID_VALUE)
        shareable = number(prop.requestedHandleTypes) == _DESCRIPTOR
        with self.engine.lock:
            try:
                descriptor = vmm.create_file(device.info.ordinal, count)
            except OSError as error:
                raise _refusal(error) from error
            return self._name(self._files.add(device, count, descriptor, shareable))

    @cuda_call()
    def cuMemRelease(self, handle: Any) -> None:
        """Give a handle back; memory that is mapped stays."""
        with self.engine.lock:
            physical = self._physical(handle)
            self._memories.drop(number(handle))
            self._files.leave(physical)

    @cuda_call(1)
    def cuMemExportToShareableHandle(self, handle: Any, handleType: Any, flags: Any) -> int:
        """Return a descriptor of physical memory; it is the caller's."""
        physical = self._physical(handle)
        if number(handleType) != _DESCRIPTOR or number(flags) or not physical.shareable:
            raise Refusal(INVALID_VALUE)
        try:
            return os.dup(physical.descriptor)
        except OSError as error:
            raise _refusal(error) from error

    @cuda_call(1)
    def cuMemImportFromShareableHandle(self, osHandle: Any, shHandleType: Any) -> int:
        """Return a handle for the memory behind a descriptor, which stays the caller's."""
        found = vmm.inspect_file(number(osHandle))
        if number(shHandleType) != _DESCRIPTOR or found is None:
            raise Refusal(INVALID_VALUE)
        device, count = self._device(found[0]), found[1]
        with self.engine.lock:
            try:
                descriptor = os.dup(number(osHandle))
            except OSError as error:
                raise _refusal(error) from error
            # What was shared with a process it cannot share itself; so it is on an H200.
            return self._name(self._files.add(device, count, descriptor, shareable=False))

    # -- mappings ------------------------------------------------------------

    @cuda_call()
    def cuMemMap(self, ptr: Any, size: Any, offset: Any, handle: Any, flags: Any) -> None:
        """Map physical memory to reserved addresses."""
        address, count = number(ptr), byte_count(size)
        if not count or address % GRANULARITY or count % GRANULARITY:
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            physical, found = self._physical(handle), self._reservation(address, count)
            if count > physical.size or number(offset) or number(flags):
                raise Refusal(INVALID_VALUE)
            if found.mappings(address, count):
                raise Refusal(INVALID_VALUE)
            try:
                found.map(address, count, physical)
            except OSError as error:
                raise _refusal(error) from error
            physical.users += 1

    @cuda_call()
    def cuMemUnmap(self, ptr: Any, size: Any) -> None:
        """Unmap whole mappings; work that uses them must have ended."""
        with self.engine.lock:
            found, mappings = self._mapped(ptr, size)
            for mapping in mappings:
                found.unmap(mapping)
                self._files.leave(mapping.physical)

    @cuda_call()
    def cuMemSetAccess(self, ptr: Any, size: Any, desc: Any, count: Any) -> None:
        """Let devices use whole mappings, or not."""
        wanted = list(desc or ())[: number(count)]
        if not wanted or len(wanted) < number(count):
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            found, mappings = self._mapped(ptr, size)
            for access in wanted:
                self._located(access.location)
                if number(access.flags) not in (0, _READ_WRITE):
                    raise Refusal(NOT_SUPPORTED)
            for access in wanted:
                device, usable = self._located(access.location), number(access.flags) == _READ_WRITE
                for mapping in mappings:
                    found.allow(mapping, device, usable)

    # -- looking up ----------------------------------------------------------

    def _check(self, address: int, count: int) -> None:
        """Refuse a range that is neither in one allocation nor mapped for its device's use."""
        for found in self._reservations.values():
            if count and found.holds(address, count):
                if not found.accessible(address, count):
                    raise Refusal(INVALID_VALUE)
                return
        super()._check(address, count)

    def _check_properties(self, properties: Any) -> Device:
        """Return the device of memory with these properties."""
        if properties is None or number(properties.type) != _PINNED:
            raise Refusal(INVALID_VALUE)
        if number(properties.requestedHandleTypes) not in (0, _DESCRIPTOR):
            raise Refusal(NOT_SUPPORTED)
        return self._located(properties.location)

    def _located(self, location: Any) -> Device:
        if number(location.type) != _ON_DEVICE:
            raise Refusal(INVALID_VALUE)
        return self._device(location.id)

    def _device_of(self, address: int) -> Device:
        """Return the device that has an address, else that of the current context."""
        for device in self._devices:
            if device.arena.base <= address < device.arena.base + device.arena.size:
                return device
        context = self._current.context
        return self._devices[0] if context is None else context.device

    def _physical(self, handle: Any) -> Physical:
        found = self._memories.get(number(handle))
        if found is None:
            raise Refusal(INVALID_VALUE)
        return found

    def _reservation(self, address: int, count: int) -> Reservation:
        for found in self._reservations.values():
            if found.holds(address, count):
                return found
        raise Refusal(INVALID_VALUE)

    def _mapped(self, ptr: Any, size: Any) -> tuple[Reservation, list[Mapping]]:
        """Return the whole mappings that a range is made of."""
        address, count = number(ptr), byte_count(size)
        found = self._reservation(address, count)
        mappings = found.whole_mappings(address, count)
        if mappings is None:
            raise Refusal(INVALID_VALUE)
        return found, mappings

    def _name(self, physical: Physical | None) -> int:
        """Return a new handle for physical memory, if there is any."""
        if physical is None:
            raise Refusal(OUT_OF_MEMORY)
        handle = self._memories.new()
        self._memories.put(handle, physical)
        physical.users += 1
        return handle


def _whole(count: int) -> int:
    return -(-count // GRANULARITY) * GRANULARITY


def _refusal(error: OSError) -> Refusal:
    full = (errno.ENOMEM, errno.ENOSPC)
    return Refusal(OUT_OF_MEMORY if error.errno in full else OPERATING_SYSTEM)
