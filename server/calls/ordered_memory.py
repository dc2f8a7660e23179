"""Device memory that is allocated and freed in the order of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ReplayDiverged
from outlast.server.calls.registry import Args, Imposed, answered, one_way, unusable
from outlast.session.handles import HandleKind
from outlast.session.operations import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor

INVALID_VALUE = 1
INVALID_HANDLE = 400


@answered(Op.MEM_ALLOC_ASYNC)
def mem_alloc_async(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Allocate in a stream's context; replay allocates at the recorded address or not at all."""
    size, stream = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    owner = _context_of(ex, stream)
    if imposed is not None:
        address = imposed[2]
        if real is None or ex.driver.allocate_at(ex.device(owner), address, size, real):
            raise ReplayDiverged(f"{size} bytes at {address:#x} cannot be had again")
    elif real is None:
        ex.answer(INVALID_HANDLE)
        return
    else:
        result, pointer = ex.cuda.cuMemAllocAsync(size, real)
        if result:
            ex.answer(int(result))
            return
        address = int(pointer)
        ex.answer(0, address)
    ex.note_allocation(address, size, owner)


@one_way(Op.MEM_FREE_ASYNC)
def mem_free_async(ex: Executor, args: Args, data: Any) -> int:
    """Free in a stream's order: other streams reuse the memory behind its work so far."""
    address, stream = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    if address not in ex.allocations:
        return INVALID_VALUE
    (result,) = ex.cuda.cuMemFreeAsync(address, real)
    if not result:
        ex.forget_allocation(address)
    return int(result)


def _context_of(ex: Executor, stream: int) -> int:
    """Return the context that a stream belongs to; special streams are of the bound one."""
    handle = ex.handles.get(HandleKind.STREAM, stream)
    return handle.parents[0] if handle is not None else ex.context
