"""Streams."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUevent_wait_flags, CUresult, CUstream_flags, CUstreamCaptureStatus
from outlast.session.operations import Op
from outlast.shim.api.context import STREAM_PRIORITIES
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import as_result, require
from outlast.shim.handles import CUcontext, CUstream
from outlast.shim.objects import Stream

__all__ = [
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
]

_FLAGS = frozenset(map(int, CUstream_flags))


@api(outputs=1)
def cuStreamCreate(Flags: int) -> tuple[CUresult, CUstream]:
    """Create a stream."""
    return cuStreamCreateWithPriority(Flags, 0)


@api(outputs=1)
def cuStreamCreateWithPriority(flags: int, priority: int) -> tuple[CUresult, CUstream]:
    """Create a stream with a priority, which is clamped to the device's range."""
    me = client()
    context = me.enter()
    require(flags in _FLAGS)
    least, greatest = STREAM_PRIORITIES
    level = min(max(int(priority), greatest), least)
    with me.lock:
        stream = Stream(me.link.new_handle(), context, int(flags), level)
        me.link.send(Op.STREAM_CREATE, stream.handle, stream.flags, stream.priority)
        me.streams.add(stream)
    return SUCCESS, CUstream(stream.handle)


@api()
def cuStreamDestroy(hStream: Any) -> tuple[CUresult]:
    """Destroy a stream; its work goes on."""
    me = client()
    me.enter()
    with me.lock:
        stream = me.streams.get(hStream)
        me.link.send(Op.STREAM_DESTROY, stream.handle)
        me.streams.remove(stream)
        stream.context.plans.clear()
    return OK


@api()
def cuStreamSynchronize(hStream: Any) -> tuple[CUresult]:
    """Wait for a stream's work."""
    me = client()
    me.synchronize(me.stream(hStream, me.enter()))
    return OK


@api()
def cuStreamQuery(hStream: Any) -> tuple[CUresult]:
    """Return whether a stream's work is done (SUCCESS) or not (NOT_READY)."""
    me = client()
    stream = me.stream(hStream, me.enter())
    place = me.progress.place_of(stream, me.newest(stream))
    return (as_result(me.progress.query(stream, place)),)


@api()
def cuStreamWaitEvent(hStream: Any, hEvent: Any, Flags: int) -> tuple[CUresult]:
    """Make a stream's later work wait for the latest record of an event."""
    me = client()
    context = me.enter()
    require(Flags == CUevent_wait_flags.CU_EVENT_WAIT_DEFAULT)
    me.make_room(hStream, context)
    with me.lock:
        stream = me.stream(hStream, context)
        event = me.events.get(hEvent)
        me.link.send(Op.STREAM_WAIT_EVENT, stream.handle, event.handle, int(Flags), lane=stream)
    return OK


@api(outputs=1)
def cuStreamGetFlags(hStream: Any) -> tuple[CUresult, int]:
    """Return the flags a stream was created with."""
    me = client()
    return SUCCESS, me.stream(hStream, me.context()).flags


@api(outputs=1)
def cuStreamGetPriority(hStream: Any) -> tuple[CUresult, int]:
    """Return a stream's priority."""
    me = client()
    return SUCCESS, me.stream(hStream, me.context()).priority


@api(outputs=1)
def cuStreamGetCtx(hStream: Any) -> tuple[CUresult, CUcontext]:
    """Return the context a stream belongs to."""
    me = client()
    return SUCCESS, CUcontext(me.stream(hStream, me.context()).context.handle)


@api(outputs=1)
def cuStreamIsCapturing(hStream: Any) -> tuple[CUresult, CUstreamCaptureStatus]:
    """Return whether a stream captures; none does, as this client offers no capture."""
    me = client()
    me.stream(hStream, me.context())
    return SUCCESS, CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
