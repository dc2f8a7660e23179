"""Memory pools. All of it is answered here; see `outlast.shim.pools`."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import (
    CUmemAccess_flags,
    CUmemAllocationType,
    CUmemLocationType,
    CUmemPool_attribute,
    CUresult,
)
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import require
from outlast.shim.handles import CUmemoryPool, as_int
from outlast.shim.objects import Device
from outlast.shim.pool_properties import CUmemLocation, CUmemPoolProps
from outlast.shim.pools import MemPool

__all__ = [
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceSetMemPool",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAccess",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
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


@api(outputs=1)
def cuMemPoolGetAccess(
    memPool: Any, location: CUmemLocation | None
) -> tuple[CUresult, CUmemAccess_flags]:
    """Return how a device may use a pool's memory: its own one fully, others not at all."""
    me = client()
    pool = me.pools.get(memPool)
    own = _place(me, location) is pool.device
    flags = CUmemAccess_flags
    return SUCCESS, (
        flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if own else flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    )


@api()
def cuMemPoolSetAccess(pool: Any, map: Any, count: int) -> tuple[CUresult]:
    """Say how devices may use a pool's memory: no other way than they do is supported."""
    me = client()
    found = me.pools.get(pool)
    wishes = list(map or ())
    require(0 <= count <= len(wishes))
    for wish in wishes[:count]:
        own, flags = _place(me, wish.location) is found.device, as_int(wish.flags)
        require(flags in list(CUmemAccess_flags))
        usual = CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if own else 0
        require(flags == usual, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    return OK


def _place(me: Client, location: CUmemLocation | None) -> Device:
    require(location is not None)
    assert location is not None
    require(as_int(location.type) == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE)
    return me.device(location.id)
