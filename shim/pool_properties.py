"""What a program wants of a new memory pool; the structures of the bindings work as well."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.cuda_types import CUmemAllocationHandleType, CUmemAllocationType, CUmemLocationType


@dataclass(slots=True)
class CUmemLocation:
    """Where memory is."""

    type: int = CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    #: Ordinal of the device.
    id: int = 0


@dataclass(slots=True)
class CUmemPoolProps:
    """Properties of a memory pool."""

    allocType: int = CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    handleTypes: int = CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    location: CUmemLocation = field(default_factory=CUmemLocation)
    #: Bytes; 0 for as much as there is.
    maxSize: int = 0
    usage: int = 0
