"""Events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.registry import Args, destroyed, one_way, query, unusable
from outlast.session import wire
from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind

if TYPE_CHECKING:
    from outlast.server.executor import Executor


@one_way(Op.EVENT_CREATE)
def event_create(ex: Executor, args: Args, data: Any) -> int:
    """Create an event in the bound context."""
    handle, flags = args
    result, real = ex.cuda.cuEventCreate(flags)
    if result:
        return int(result)
    ex.add_handle(HandleKind.EVENT, handle, int(real), {"flags": flags}, (ex.context,))
    return 0


@one_way(Op.EVENT_DESTROY)
def event_destroy(ex: Executor, args: Args, data: Any) -> int:
    """Destroy an event."""
    event = ex.handles.get(HandleKind.EVENT, args[0])
    if event is None:
        return destroyed(ex, args[0])
    (result,) = ex.cuda.cuEventDestroy(event.real)
    ex.drop_handle(event.id)
    return int(result)


@one_way(Op.EVENT_RECORD)
def event_record(ex: Executor, args: Args, data: Any) -> int:
    """Record an event; its recipe remembers that it has been."""
    event, stream, _ = args
    found = ex.handles.get(HandleKind.EVENT, event)
    real_stream = ex.handles.real[HandleKind.STREAM].get(stream)
    if found is None or real_stream is None:
        return unusable(ex, event, stream)
    found.recipe["recorded"] = True
    return int(ex.cuda.cuEventRecord(found.real, real_stream)[0])


@query(Op.EVENT_QUERY)
def event_query(ex: Executor, args: Args) -> tuple[int, bytes] | None:
    """Tell whether the latest record of an event is done; never recorded means done."""
    real = ex.handles.real[HandleKind.EVENT].get(args[1])
    if real is None:
        return unusable(ex, args[1]), b""
    return ex.poll(ex.driver.event_ticket(real), args[0])


@query(Op.EVENT_SYNC)
def event_sync(ex: Executor, args: Args) -> tuple[int, bytes] | None:
    """Answer when the record that is the latest now is done."""
    real = ex.handles.real[HandleKind.EVENT].get(args[1])
    if real is None:
        return unusable(ex, args[1]), b""
    ex.wait_for(ex.driver.event_ticket(real), ReplyKind.ANSWER, args[0])
    return None


@query(Op.EVENT_ELAPSED)
def event_elapsed(ex: Executor, args: Args) -> tuple[int, bytes] | None:
    """Return the milliseconds between two records."""
    start = ex.handles.real[HandleKind.EVENT].get(args[1])
    end = ex.handles.real[HandleKind.EVENT].get(args[2])
    if start is None or end is None:
        return unusable(ex, args[1], args[2]), b""

    def elapsed() -> tuple[int, bytes]:
        result, milliseconds = ex.cuda.cuEventElapsedTime(start, end)
        if result:
            return int(result), b""
        return 0, wire.pack_fields(Op.EVENT_ELAPSED, float(milliseconds))

    tickets = ex.driver.event_ticket(start), ex.driver.event_ticket(end)
    return ex.poll(max(tickets), args[0], elapsed)
