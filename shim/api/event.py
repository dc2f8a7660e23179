"""Events."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUevent_flags, CUevent_record_flags, CUresult
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import as_result, check, require
from outlast.shim.handles import CUevent
from outlast.shim.objects import Event, Place

__all__ = [
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
]

_KNOWN = CUevent_flags.CU_EVENT_BLOCKING_SYNC | CUevent_flags.CU_EVENT_DISABLE_TIMING


@api(outputs=1)
def cuEventCreate(Flags: int) -> tuple[CUresult, CUevent]:
    """Create an event."""
    me = client()
    context = me.enter()
    interprocess = CUevent_flags.CU_EVENT_INTERPROCESS
    require(Flags >= 0 and not Flags & ~(_KNOWN | interprocess))
    require(not Flags & interprocess, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    with me.lock:
        event = Event(me.link.new_handle(), context, int(Flags))
        me.link.send(Op.EVENT_CREATE, event.handle, event.flags)
        me.events.add(event)
    return SUCCESS, CUevent(event.handle)


@api()
def cuEventDestroy(hEvent: Any) -> tuple[CUresult]:
    """Destroy an event."""
    me = client()
    me.enter()
    with me.lock:
        event = me.events.get(hEvent)
        me.link.send(Op.EVENT_DESTROY, event.handle)
        me.events.remove(event)
    return OK


@api()
def cuEventRecord(hEvent: Any, hStream: Any) -> tuple[CUresult]:
    """Record an event in a stream."""
    return cuEventRecordWithFlags(hEvent, hStream, 0)


@api()
def cuEventRecordWithFlags(hEvent: Any, hStream: Any, flags: int) -> tuple[CUresult]:
    """Record an event in a stream."""
    me = client()
    context = me.enter()
    require(flags == CUevent_record_flags.CU_EVENT_RECORD_DEFAULT)
    me.make_room(hStream, context)
    with me.lock:
        event = me.events.get(hEvent)
        stream = me.stream(hStream, context)
        require(event.context is stream.context, CUresult.CUDA_ERROR_INVALID_HANDLE)
        told = me.progress.told
        seq = me.link.send(Op.EVENT_RECORD, event.handle, stream.handle, int(flags), lane=stream)
        event.place = Place(stream, seq, told=told)
        event.recorded = True
    return OK


@api()
def cuEventQuery(hEvent: Any) -> tuple[CUresult]:
    """Return whether the latest record is done (SUCCESS; also if there is none) or not."""
    me = client()
    me.enter()
    event = me.events.get(hEvent)
    place = event.place
    return OK if place is None else (as_result(me.progress.query(event, place)),)


@api()
def cuEventSynchronize(hEvent: Any) -> tuple[CUresult]:
    """Wait for the latest record of an event."""
    me = client()
    me.enter()
    event = me.events.get(hEvent)
    me.waited(event.context, me.progress.wait(event))
    return OK


@api(outputs=1)
def cuEventElapsedTime(hStart: Any, hEnd: Any) -> tuple[CUresult, float]:
    """Return the milliseconds between the records of two events."""
    me = client()
    me.enter()
    start, end = me.events.get(hStart), me.events.get(hEnd)
    for event in (start, end):
        timed = event.recorded and not event.flags & CUevent_flags.CU_EVENT_DISABLE_TIMING
        require(timed, CUresult.CUDA_ERROR_INVALID_HANDLE)
    reply = me.link.query(Op.EVENT_ELAPSED, start.handle, end.handle)
    check(reply.result)
    me.progress.tell()
    (milliseconds,) = unpack_reply(Op.EVENT_ELAPSED, reply.data)
    return SUCCESS, milliseconds
