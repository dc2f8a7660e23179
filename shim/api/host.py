"""Pinned host memory. All of it is answered here, but for the errors of a poisoned session.

There is no mapped memory: kernels cannot reach the program's memory, and the device's
attributes say so.
"""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import (
    CU_MEMHOSTALLOC_DEVICEMAP,
    CU_MEMHOSTALLOC_PORTABLE,
    CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_IOMEMORY,
    CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY,
    CUdevice_attribute,
    CUresult,
)
from outlast.shim.api.memory import MAX_SIZE
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, require
from outlast.shim.handles import CUdeviceptr, as_int
from outlast.shim.host_memory import address_of

__all__ = [
    "cuMemAllocHost",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuMemHostGetFlags",
    "cuMemHostRegister",
    "cuMemHostUnregister",
]

_ALLOC_FLAGS = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED
_REGISTER_FLAGS = (
    CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY
)
_READ_ONLY = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED


@api(outputs=1)
def cuMemAllocHost(bytesize: int) -> tuple[CUresult, int]:
    """Allocate pinned host memory."""
    return cuMemHostAlloc(bytesize, 0)


@api(outputs=1)
def cuMemHostAlloc(bytesize: int, Flags: int) -> tuple[CUresult, int]:
    """Allocate pinned host memory, NULL for no bytes.

    Who asks for a mapping gets an error when asking for its address.
    """
    me = client()
    context = me.enter()
    size = as_int(bytesize)
    require(size >= 0 and not Flags & ~_ALLOC_FLAGS)
    require(size < MAX_SIZE, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    return SUCCESS, me.pinned.allocate(size, int(Flags), context).address if size else 0


@api()
def cuMemFreeHost(p: Any) -> tuple[CUresult]:
    """Free pinned host memory that was allocated, once copies to it are there; NULL is allowed."""
    me = client()
    me.enter()
    address = as_int(p)
    if address:
        _wait_for_copies(me, address)
        with me.lock:
            found = me.pinned.at(address)
            require(found is not None and found.memory is not None)
            me.pinned.remove(address)
    return OK


@api()
def cuMemHostRegister(p: Any, bytesize: int, Flags: int) -> tuple[CUresult]:
    """Take the program's own memory as pinned."""
    me = client()
    context = me.enter()
    address, size = address_of(p), as_int(bytesize)
    require(size > 0 and address > 0 and not Flags & ~_REGISTER_FLAGS)
    require(not (me.in_arena(address) or me.in_arena(address + size - 1)))
    unsupported = CUresult.CUDA_ERROR_NOT_SUPPORTED
    require(not Flags & CU_MEMHOSTREGISTER_IOMEMORY, unsupported)
    if Flags & CU_MEMHOSTREGISTER_READ_ONLY:
        require(context.device.limits(_READ_ONLY)[0], unsupported)
    me.pinned.register(address, size, int(Flags), context)
    return OK


@api()
def cuMemHostUnregister(p: Any) -> tuple[CUresult]:
    """Take registered memory as the program's own again, once copies to it are there."""
    me = client()
    me.enter()
    address = address_of(p)
    require(address > 0)
    _wait_for_copies(me, address)
    with me.lock:
        found = me.pinned.find(address)
        require(found is not None, CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        assert found is not None
        require(found.address == address and found.memory is None)
        me.pinned.remove(address)
    return OK


@api(outputs=1)
def cuMemHostGetFlags(p: Any) -> tuple[CUresult, int]:
    """Return the flags that pinned memory was allocated or registered with."""
    me = client()
    me.context()
    found = me.pinned.find(address_of(p))
    if found is None:
        raise CallFailure(CUresult.CUDA_ERROR_INVALID_VALUE)
    return SUCCESS, found.flags


@api(outputs=1)
def cuMemHostGetDevicePointer(p: Any, Flags: int) -> tuple[CUresult, CUdeviceptr]:
    """Fail: no device can reach the program's memory."""
    me = client()
    me.context()
    require(Flags == 0 and me.pinned.find(address_of(p)))
    raise CallFailure(CUresult.CUDA_ERROR_NOT_SUPPORTED)


def _wait_for_copies(me: Client, address: int) -> None:
    found = me.pinned.at(address)
    if found is not None and me.landings:
        me.landings.wait_for_range(found.address, found.end)
