"""Device memory that is allocated and freed in the order of a stream.

An allocation waits for its address, as `cuMemAlloc` does: it may fail, and programs act on
that. A free does not wait. No bytes are allocated at NULL.

What is still allocated goes with the stream's context; in CUDA it stays with the device.
"""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.allocations import Allocation
from outlast.shim.api.memory import MAX_SIZE, allocation_at
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import check, require
from outlast.shim.handles import CUdeviceptr, as_int
from outlast.shim.objects import Stream
from outlast.shim.pools import MemPool

__all__ = [
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
]


@api(outputs=1)
def cuMemAllocAsync(bytesize: int, hStream: Any) -> tuple[CUresult, CUdeviceptr]:
    """Allocate from the current pool of a stream's device, in the stream's order."""
    me = client()
    stream = me.make_room(hStream, me.enter())
    return _allocate(me, bytesize, me.pools.current(stream.context.device), stream)


@api(outputs=1)
def cuMemAllocFromPoolAsync(bytesize: int, pool: Any, hStream: Any) -> tuple[CUresult, CUdeviceptr]:
    """Allocate from a pool, in a stream's order; pool and stream must be of one device."""
    me = client()
    stream = me.make_room(hStream, me.enter())
    found = me.pools.get(pool)
    same = found.device is stream.context.device
    require(same, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    return _allocate(me, bytesize, found, stream)


@api()
def cuMemFreeAsync(dptr: Any, hStream: Any) -> tuple[CUresult]:
    """Free an allocation in a stream's order, however it was allocated; NULL is allowed."""
    me = client()
    context = me.enter()
    address = as_int(dptr)
    me.make_room(hStream, context)
    with me.lock:
        stream = me.stream(hStream, context)
        if address:
            allocation_at(me, address)
            me.link.send(Op.MEM_FREE_ASYNC, address, stream.handle, lane=stream)
            me.allocations.remove(address)
    return OK


def _allocate(
    me: Client, bytesize: int, pool: MemPool, stream: Stream
) -> tuple[CUresult, CUdeviceptr]:
    size, context = as_int(bytesize), stream.context
    require(size >= 0)
    if not size:
        return SUCCESS, CUdeviceptr(0)
    require(size < MAX_SIZE, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    # A late error is reported before, never instead of, an allocation.
    me.report_late(context)
    pool.take(size)
    try:
        reply = me.link.call(Op.MEM_ALLOC_ASYNC, size, stream.handle, lane=stream)
        check(reply.result)
        with me.lock:
            require(context.alive, CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
            me.allocations.add(Allocation(reply.value, size, context, pool=pool))
    except BaseException:
        pool.give(size)
        raise
    pool.took()
    return SUCCESS, CUdeviceptr(reply.value)
