"""Device memory: allocations."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.allocations import Allocation
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import CUdeviceptr, as_int

__all__ = [
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemGetAddressRange",
    "cuMemGetInfo",
]

#: More than anything holds.
MAX_SIZE = 1 << 63  # bytes
#: Of rows, as on NVIDIA's devices.
PITCH_ALIGNMENT = 512  # bytes


@api(outputs=1)
def cuMemAlloc(bytesize: int) -> tuple[CUresult, CUdeviceptr]:
    """Allocate device memory in the current context."""
    me = client()
    context = me.enter()
    size = as_int(bytesize)
    require(size > 0)
    require(size < MAX_SIZE, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    # A late error is reported before, never instead of, an allocation.
    me.report_late(context)
    reply = me.link.call(Op.MEM_ALLOC, size)
    check(reply.result)
    with me.lock:
        require(context.alive, CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        me.allocations.add(Allocation(reply.value, size, context))
    return SUCCESS, CUdeviceptr(reply.value)


@api(outputs=2)
def cuMemAllocPitch(
    WidthInBytes: int, Height: int, ElementSizeBytes: int
) -> tuple[CUresult, CUdeviceptr, int]:
    """Allocate rows that begin at aligned addresses; return the first one's and their pitch."""
    client().enter()
    width, height = as_int(WidthInBytes), as_int(Height)
    require(0 < width < MAX_SIZE and 0 < height < MAX_SIZE)
    require(as_int(ElementSizeBytes) in (4, 8, 16))
    pitch = -(-width // PITCH_ALIGNMENT) * PITCH_ALIGNMENT
    result, address = cuMemAlloc(pitch * height)
    check(result)
    return SUCCESS, address, pitch


@api()
def cuMemFree(dptr: Any) -> tuple[CUresult]:
    """Free an allocation once the work before has ended; NULL is allowed."""
    me = client()
    me.enter()
    address = as_int(dptr)
    if address:
        with me.lock:
            allocation = allocation_at(me, address)
            me.link.send(Op.MEM_FREE, address)
            me.allocations.remove(address)
        # CUDA waits here, and programs may rely on it; not for memory of a stream's order.
        if me.landings and allocation.pool is None:
            me.landings.wait_for_context(allocation.context)
    return OK


@api(outputs=2)
def cuMemGetInfo() -> tuple[CUresult, int, int]:
    """Return free and total bytes of the current context's device."""
    me = client()
    me.enter()
    reply = me.link.query(Op.MEM_INFO)
    check(reply.result)
    free, total = unpack_reply(Op.MEM_INFO, reply.data)
    return SUCCESS, free, total


@api(outputs=2)
def cuMemGetAddressRange(dptr: Any) -> tuple[CUresult, CUdeviceptr, int]:
    """Return base and size of the allocation around an address."""
    me = client()
    me.context()
    allocation = me.allocations.find(as_int(dptr))
    if allocation is None:
        raise CallFailure(CUresult.CUDA_ERROR_NOT_FOUND)
    return SUCCESS, CUdeviceptr(allocation.address), allocation.size


def allocation_at(me: Client, address: int) -> Allocation:
    """Return the allocation that begins at ``address`` and may be freed, else INVALID_VALUE."""
    allocation = me.allocations.find(address)
    require(allocation and allocation.address == address and not allocation.module)
    assert allocation is not None
    return allocation
