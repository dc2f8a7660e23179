"""Streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.registry import Args, destroyed, one_way, query, unusable
from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind

if TYPE_CHECKING:
    from outlast.server.executor import Executor


@one_way(Op.STREAM_CREATE)
def stream_create(ex: Executor, args: Args, data: Any) -> int:
    """Create a stream in the bound context."""
    handle, flags, priority = args
    result, real = ex.cuda.cuStreamCreateWithPriority(flags, priority)
    if result:
        return int(result)
    recipe = {"flags": flags, "priority": priority}
    ex.add_handle(HandleKind.STREAM, handle, int(real), recipe, (ex.context,))
    return 0


@one_way(Op.STREAM_DESTROY)
def stream_destroy(ex: Executor, args: Args, data: Any) -> int:
    """Destroy a stream; a stream that was never made is destroyed with success."""
    stream = ex.handles.get(HandleKind.STREAM, args[0])
    if stream is None:
        return destroyed(ex, args[0])
    (result,) = ex.cuda.cuStreamDestroy(stream.real)
    ex.drop_handle(stream.id)
    return int(result)


@one_way(Op.STREAM_WAIT_EVENT)
def stream_wait_event(ex: Executor, args: Args, data: Any) -> int:
    """Make a stream wait for the latest record of an event."""
    stream, event, flags = args
    real_stream = ex.handles.real[HandleKind.STREAM].get(stream)
    real_event = ex.handles.real[HandleKind.EVENT].get(event)
    if real_stream is None or real_event is None:
        return unusable(ex, stream, event)
    return int(ex.cuda.cuStreamWaitEvent(real_stream, real_event, flags)[0])


@query(Op.STREAM_QUERY)
def stream_query(ex: Executor, args: Args) -> tuple[int, bytes] | None:
    """Tell whether a stream's work so far is done."""
    real = ex.handles.real[HandleKind.STREAM].get(args[1])
    if real is None:
        return unusable(ex, args[1]), b""
    return ex.poll(ex.driver.ticket(real), args[0])


@query(Op.STREAM_SYNC)
def stream_sync(ex: Executor, args: Args) -> tuple[int, bytes] | None:
    """Answer when a stream's work so far is done."""
    real = ex.handles.real[HandleKind.STREAM].get(args[1])
    if real is None:
        return unusable(ex, args[1]), b""
    ex.wait_for(ex.driver.ticket(real), ReplyKind.ANSWER, args[0])
    return None
