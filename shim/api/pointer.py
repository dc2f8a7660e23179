"""What pointers point to, answered from the tables of allocations and pinned memory.

A pointer is what a table says of it, never what its number looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.cuda_types import CUmemorytype, CUpointer_attribute, CUresult
from outlast.shim.allocations import Allocation
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import require
from outlast.shim.handles import CUcontext, CUdeviceptr, CUmemoryPool, as_int
from outlast.shim.pinned import PinnedRange

__all__ = [
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuPointerSetAttribute",
]

_NAME = CUpointer_attribute
#: Attributes of everything known, with their values for a pointer to nothing known.
_NOTHING: dict[int, Any] = {
    _NAME.CU_POINTER_ATTRIBUTE_CONTEXT: CUcontext(0),
    _NAME.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: 0,
    _NAME.CU_POINTER_ATTRIBUTE_DEVICE_POINTER: CUdeviceptr(0),
    _NAME.CU_POINTER_ATTRIBUTE_HOST_POINTER: 0,
    _NAME.CU_POINTER_ATTRIBUTE_IS_MANAGED: False,
    _NAME.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 0,
    _NAME.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: False,
    _NAME.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: CUdeviceptr(0),
    _NAME.CU_POINTER_ATTRIBUTE_RANGE_SIZE: 0,
    _NAME.CU_POINTER_ATTRIBUTE_MAPPED: False,
    _NAME.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: CUmemoryPool(0),
}
#: The one pointer of a kind of memory that the other kind does not have.
_ELSEWHERE = {
    CUmemorytype.CU_MEMORYTYPE_DEVICE: _NAME.CU_POINTER_ATTRIBUTE_HOST_POINTER,
    CUmemorytype.CU_MEMORYTYPE_HOST: _NAME.CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
}


@api(outputs=1)
def cuPointerGetAttribute(attribute: CUpointer_attribute, ptr: Any) -> tuple[CUresult, Any]:
    """Return an attribute of an address in device memory or pinned host memory."""
    me = client()
    me.context()
    values = _attributes(me, as_int(ptr))
    require(values is not None)
    assert values is not None
    number = as_int(attribute)
    # Device memory has no host pointer, and the other way round; the rest that is missing
    # describes memory this client cannot make.
    require(number in values or number not in _NOTHING)
    require(number in values, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    return SUCCESS, values[number]


@api(outputs=1)
def cuPointerGetAttributes(
    numAttributes: int, attributes: Sequence[CUpointer_attribute] | None, ptr: Any
) -> tuple[CUresult, list[Any]]:
    """Return several attributes; those that an address does not have are 0, without an error."""
    me = client()
    me.context()
    asked = [as_int(attribute) for attribute in attributes or ()]
    require(0 < numAttributes <= len(asked))
    values = {**_NOTHING, **(_attributes(me, as_int(ptr)) or {})}
    require(all(a in values for a in asked), CUresult.CUDA_ERROR_NOT_SUPPORTED)
    return SUCCESS, [values[attribute] for attribute in asked[:numAttributes]]


@api()
def cuPointerSetAttribute(value: Any, attribute: CUpointer_attribute, ptr: Any) -> tuple[CUresult]:
    """Have copies of an allocation be synchronous; no program can tell whether they are."""
    me = client()
    me.context()
    require(as_int(attribute) == _NAME.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    require(me.allocations.find(as_int(ptr)))
    return OK


def _attributes(me: Client, address: int) -> dict[int, Any] | None:
    """Return what is known of an address, None if it is not ours."""
    found = me.allocations.find(address)
    if found is not None:
        values = _describe(found, address, CUmemorytype.CU_MEMORYTYPE_DEVICE)
        if found.pool is not None:
            # CUDA names no context: such memory is its device's.
            pool = CUmemoryPool(found.pool.handle)
            values[_NAME.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = pool
            values[_NAME.CU_POINTER_ATTRIBUTE_CONTEXT] = CUcontext(0)
        return values
    pinned = me.pinned.find(address)
    if pinned is not None:
        return _describe(pinned, address, CUmemorytype.CU_MEMORYTYPE_HOST)
    return None


def _describe(memory: Allocation | PinnedRange, address: int, kind: CUmemorytype) -> dict[int, Any]:
    values: dict[int, Any] = {
        _NAME.CU_POINTER_ATTRIBUTE_CONTEXT: CUcontext(memory.context.handle),
        _NAME.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: kind,
        _NAME.CU_POINTER_ATTRIBUTE_DEVICE_POINTER: CUdeviceptr(address),
        _NAME.CU_POINTER_ATTRIBUTE_HOST_POINTER: address,
        _NAME.CU_POINTER_ATTRIBUTE_IS_MANAGED: False,
        _NAME.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: memory.context.device.ordinal,
        _NAME.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: False,
        _NAME.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: CUdeviceptr(memory.address),
        _NAME.CU_POINTER_ATTRIBUTE_RANGE_SIZE: memory.size,
        _NAME.CU_POINTER_ATTRIBUTE_MAPPED: True,
        _NAME.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: CUmemoryPool(0),
    }
    del values[_ELSEWHERE[kind]]
    return values
