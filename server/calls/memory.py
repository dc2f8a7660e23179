"""Device memory: allocation, filling, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ReplayDiverged
from outlast.server.calls.registry import (
    Args,
    Imposed,
    answered,
    one_way,
    query,
    unusable,
)
from outlast.session import wire
from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME, ReplyKind

if TYPE_CHECKING:
    from outlast.server.executor import Executor

INVALID_VALUE = 1
INVALID_CONTEXT = 201
#: Flag of a copy between addresses: nothing runs beside it.
SERIAL = 2


@answered(Op.MEM_ALLOC)
def mem_alloc(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Allocate; replay allocates at the recorded address or not at all."""
    (size,) = args
    if imposed is not None:
        address = imposed[2]
        if ex.driver.allocate_at(ex.device(), address, size):
            raise ReplayDiverged(f"{size} bytes at {address:#x} cannot be had again")
    else:
        result, pointer = ex.cuda.cuMemAlloc(size)
        if result:
            ex.answer(int(result))
            return
        address = int(pointer)
        ex.answer(0, address)
    ex.note_allocation(address, size)


@one_way(Op.MEM_FREE)
def mem_free(ex: Executor, args: Args, data: Any) -> int:
    """Free an allocation; the device reuses it only behind the work before."""
    (address,) = args
    if address not in ex.allocations:
        return INVALID_VALUE
    (result,) = ex.cuda.cuMemFree(address)
    if not result:
        ex.forget_allocation(address)
    return int(result)


@query(Op.MEM_INFO)
def mem_info(ex: Executor, args: Args) -> tuple[int, bytes]:
    """Return free and total bytes."""
    result, free, total = ex.cuda.cuMemGetInfo()
    if result:
        return int(result), b""
    return 0, wire.pack_fields(Op.MEM_INFO, int(free), int(total))


@one_way(Op.MEMSET)
def memset(ex: Executor, args: Args, data: Any) -> int:
    """Fill elements of 1, 2 or 4 bytes."""
    address, stream, count, value, width, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    if width == 1:
        return int(ex.cuda.cuMemsetD8Async(address, value & 0xFF, count, real)[0])
    if width == 2:
        return int(ex.cuda.cuMemsetD16Async(address, value & 0xFFFF, count, real)[0])
    if width == 4:
        return int(ex.cuda.cuMemsetD32Async(address, value, count, real)[0])
    return INVALID_VALUE


@one_way(Op.COPY_HTOD)
def copy_htod(ex: Executor, args: Args, data: Any) -> int:
    """Copy bytes that came with the call to the device."""
    address, stream, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    return ex.driver.enqueue_write(address, data, real)


@answered(Op.COPY_DTOH)
def copy_dtoh(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Copy device bytes as they are at this place; replayed ones have landed already."""
    if imposed is not None:
        return
    address, stream, size, _ = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None or size > MAX_FRAME:
        ex.answer(INVALID_VALUE if size > MAX_FRAME else 400)
        return
    answer_copy(ex, real, *ex.driver.enqueue_read(address, size, real))


def answer_copy(ex: Executor, stream: int, result: int, buffer: memoryview) -> None:
    """Answer a copy to the host that was just enqueued, with its bytes once they are there."""
    if result:
        ex.answer(result)
        return
    ex.wait_for(ex.driver.ticket(stream), ReplyKind.OUTCOME, ex.seq, buffer)


@one_way(Op.COPY_DTOD)
def copy_dtod(ex: Executor, args: Args, data: Any) -> int:
    """Copy between device addresses, of different devices too."""
    destination, source, stream, size, flags = args
    real = ex.handles.real[HandleKind.STREAM].get(stream)
    if real is None:
        return unusable(ex, stream)
    if not flags & SERIAL:
        return int(ex.cuda.cuMemcpyDtoDAsync(destination, source, size, real)[0])
    ex.driver.order_all()
    result = int(ex.cuda.cuMemcpyDtoDAsync(destination, source, size, real)[0])
    ex.driver.order_all()
    return result
