"""Memory pools. All of it is answered here; see `outlast.shim.pools`."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import (
    CUmemAllocationType,
    CUmemLocationType,
    CUmemPool_attribute,
    CUresult,
)
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import require
from outlast.shim.handles import CUmemoryPool, as_int
from outlast.shim.pool_properties import CUmemPoolProps
from outlast.shim.pools import MemPool

__all__ = [
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceSetMemPool",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
]


@api(outputs=1)
def cuDeviceGetDefaultMemPool(dev: Any) -> tuple[CUresult, CUmemoryPool]:
    """Return the pool that a device always has; its handle is a constant."""
    me = client()
    return SUCCESS, CUmemoryPool(me.pools.default(me.device(dev)).handle)


@api(outputs=1)
def cuDeviceGetMemPool(dev: Any) -> tuple[CUresult, CUmemoryPool]:
    """Return the pool that allocations of a device come from."""
    me = client()
    return SUCCESS, CUmemoryPool(me.pools.current(me.device(dev)).handle)


@api()
def cuDeviceSetMemPool(dev: Any, pool: Any) -> tuple[CUresult]:
    """Choose the pool that allocations of a device come from."""
    me = client()
    device = me.device(dev)
    with me.lock:
        chosen = me.pools.get(pool)
        require(chosen.device is device)
        me.pools.set_current(chosen)
    return OK


@api(outputs=1)
def cuMemPoolCreate(poolProps: CUmemPoolProps | None) -> tuple[CUresult, CUmemoryPool]:
    """Create a pool of device memory; the other kinds and sharing are not supported."""
    me = client()
    require(poolProps is not None)
    assert poolProps is not None
    kind, place = as_int(poolProps.allocType), poolProps.location
    unsupported = CUresult.CUDA_ERROR_NOT_SUPPORTED
    require(kind != CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED, unsupported)
    require(kind == CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
    require(as_int(place.type) != CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID)
    require(as_int(place.type) == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, unsupported)
    require(0 <= as_int(place.id) < len(me.devices))
    require(not as_int(poolProps.handleTypes) and not as_int(poolProps.usage), unsupported)
    size = as_int(poolProps.maxSize)
    require(size >= 0)
    pool = MemPool(me.link.new_handle(), me.devices[as_int(place.id)], size)
    with me.lock:
        me.pools.add(pool)
    return SUCCESS, CUmemoryPool(pool.handle)


@api()
def cuMemPoolDestroy(pool: Any) -> tuple[CUresult]:
    """Destroy a pool; what was allocated from it stays until it is freed."""
    me = client()
    with me.lock:
        me.pools.remove(me.pools.get(pool))
    return OK


@api(outputs=1)
def cuMemPoolGetAttribute(pool: Any, attr: CUmemPool_attribute) -> tuple[CUresult, int]:
    """Return an attribute of a pool."""
    return SUCCESS, client().pools.get(pool).attribute(as_int(attr))


@api()
def cuMemPoolSetAttribute(pool: Any, attr: CUmemPool_attribute, value: Any) -> tuple[CUresult]:
    """Set an attribute of a pool."""
    client().pools.get(pool).set_attribute(as_int(attr), as_int(value))
    return OK


@api()
def cuMemPoolTrimTo(pool: Any, minBytesToKeep: int) -> tuple[CUresult]:
    """Let a pool keep no more free memory than this; the device's own is given up as needed."""
    found = client().pools.get(pool)
    keep = as_int(minBytesToKeep)
    require(keep >= 0)
    found.trim(keep)
    return OK
