"""What CUDA's calls for virtual memory name: physical memory, reservations, mappings.

Physical memory is an anonymous file, so that other processes can map it too. The structures have
the fields of those of `cuda.bindings.driver` that count here; the calls take either.
"""

from __future__ import annotations

import fcntl
import os
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from outlast.cuda_types import (
    CUmemAccess_flags,
    CUmemAllocationHandleType,
    CUmemAllocationType,
    CUmemLocationType,
)
from outlast.server.drivers.emulated import pages
from outlast.server.drivers.emulated.objects import Device

GRANULARITY = 2 << 20  # bytes, as on GPUs

_FILE_NAME = "outlast-device"
_FILE = re.compile(rf"/memfd:{_FILE_NAME}-(\d+) \(deleted\)", re.ASCII)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@dataclass(slots=True)
class CUmemLocation:
    """Where memory is."""

    type: CUmemLocationType = CUmemLocationType.CU_MEM_LOCATION_TYPE_NONE
    id: int = 0


@dataclass(slots=True)
class AllocationFlags:
    """Wishes, which this device grants all alike."""

    compressionType: int = 0
    gpuDirectRDMACapable: int = 0
    usage: int = 0


@dataclass(slots=True)
class CUmemAllocationProp:
    """What physical memory to create."""

    type: CUmemAllocationType = CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    requestedHandleTypes: CUmemAllocationHandleType = (
        CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    )
    location: CUmemLocation = field(default_factory=CUmemLocation)
    allocFlags: AllocationFlags = field(default_factory=AllocationFlags)


@dataclass(slots=True)
class CUmemAccessDesc:
    """Who may use a range, and how."""

    location: CUmemLocation = field(default_factory=CUmemLocation)
    flags: CUmemAccess_flags = CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE


@dataclass(slots=True, eq=False)
class Physical:
    """Physical memory; it lives as long as a handle or a mapping uses it."""

    device: Device
    size: int
    descriptor: int
    #: May be exported.
    shareable: bool
    users: int = 0


class Memories:
    """The physical memory of a process, of which each piece is there and counted once."""

    def __init__(self) -> None:
        #: By what its descriptors have in common: device and inode number.
        self._by_file: dict[tuple[int, int], Physical] = {}

    def add(self, device: Device, size: int, descriptor: int, shareable: bool) -> Physical | None:
        """Take memory over with its descriptor; None, and it is closed, if it does not fit."""
        file = _identity(descriptor)
        known = self._by_file.get(file)
        arena = device.arena
        if known is not None or arena.used + size > arena.total:
            os.close(descriptor)
            return known
        arena.used += size
        self._by_file[file] = found = Physical(device, size, descriptor, shareable)
        return found

    def leave(self, physical: Physical) -> None:
        """Count a handle or mapping out; with the last one the memory goes."""
        physical.users -= 1
        if not physical.users:
            physical.device.arena.used -= physical.size
            del self._by_file[_identity(physical.descriptor)]
            os.close(physical.descriptor)

    def close(self) -> None:
        """Close what is left, at the device's end."""
        while self._by_file:
            os.close(self._by_file.popitem()[1].descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def create_file(ordinal: int, size: int) -> int:
    """Return a descriptor of new memory of zeros whose size nobody can change."""
    descriptor = os.memfd_create(f"{_FILE_NAME}-{ordinal}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def inspect_file(descriptor: int) -> tuple[int, int] | None:
    """Return ordinal and size of the memory behind a descriptor; None if it is something else."""
    try:
        found = _FILE.fullmatch(os.readlink(f"/proc/self/fd/{descriptor}"))
        if found is None or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
        return int(found[1]), os.fstat(descriptor).st_size
    except OSError:
        return None


@dataclass(slots=True, eq=False)
class Mapping:
    """Physical memory at an address."""

    address: int
    size: int
    physical: Physical
    #: Devices that may use it.
    users: set[Device] = field(default_factory=set)

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.address + self.size


class Reservation:
    """A range of addresses, among a device's own, that any memory may be mapped into."""

    def __init__(self, device: Device, address: int, size: int) -> None:
        self.device, self.address, self.size = device, address, size
        self._starts: list[int] = []
        self._mappings: dict[int, Mapping] = {}

    def holds(self, address: int, size: int) -> bool:
        """Return whether a range lies in it."""
        return self.address <= address and address + size <= self.address + self.size

    def mappings(self, address: int, size: int) -> list[Mapping]:
        """Return the mappings that a range touches, by address."""
        first = max(bisect_right(self._starts, address) - 1, 0)
        last = bisect_left(self._starts, address + size)
        found = [self._mappings[start] for start in self._starts[first:last]]
        return found[1:] if found and found[0].end <= address else found

    def whole_mappings(self, address: int, size: int) -> list[Mapping] | None:
        """Return the mappings that make up a range, whole and without a gap; None if none do."""
        found, end = self.mappings(address, size), address
        for mapping in found:
            if mapping.address != end:
                return None
            end = mapping.end
        return found if found and end == address + size else None

    def accessible(self, address: int, size: int) -> bool:
        """Return whether some device may use every byte of a range."""
        for mapping in self.mappings(address, size):
            if mapping.address > address or not mapping.users:
                return False
            size -= mapping.end - address
            address = mapping.end
        return size <= 0

    def map(self, address: int, size: int, physical: Physical) -> None:
        """Map memory; nobody may use it yet."""
        pages.map_file(address, size, physical.descriptor)
        self._starts.insert(bisect_left(self._starts, address), address)
        self._mappings[address] = Mapping(address, size, physical)

    def allow(self, mapping: Mapping, device: Device, accessible: bool) -> None:
        """Let a device's kernels use a mapping, or not."""
        device.arena.show(mapping.address, mapping.size, accessible)
        if accessible:
            mapping.users.add(device)
        else:
            mapping.users.discard(device)

    def unmap(self, mapping: Mapping) -> None:
        """Take a mapping away, at once: a kernel that still uses it is in error."""
        for device in list(mapping.users):
            self.allow(mapping, device, False)
        # Not less than plain memory: a kernel may be past the look into the page map.
        self.device.arena.restore_pages(mapping.address, mapping.size)
        del self._mappings[mapping.address]
        del self._starts[bisect_left(self._starts, mapping.address)]
