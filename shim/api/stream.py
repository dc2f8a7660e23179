"""Streams."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import (
    CUevent_wait_flags,
    CUlaunchAttributeID,
    CUresult,
    CUstream_flags,
    CUstreamCaptureStatus,
)
from outlast.session.operations import Op
from outlast.shim.api.context import STREAM_PRIORITIES
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import as_result, require
from outlast.shim.handles import CUcontext, CUdevice, CUstream, as_int
from outlast.shim.objects import Stream

__all__ = [
    "cuStreamCopyAttributes",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamGetAttribute",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuStreamGetDevice",
    "cuStreamGetFlags",
    "cuStreamGetId",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSetAttribute",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
]

_FLAGS = frozenset(map(int, CUstream_flags))
_ATTRIBUTES = frozenset(
    {
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
        CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    }
)


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
    """Destroy a stream, behind its host functions; its other work goes on."""
    me = client()
    me.enter()
    me.host_functions.wait_for_stream(me.streams.get(hStream))
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
    if me.host_functions.holds(stream):
        return (CUresult.CUDA_ERROR_NOT_READY,)
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


@api(outputs=6)
def cuStreamGetCaptureInfo(
    hStream: Any,
) -> tuple[CUresult, CUstreamCaptureStatus, int, int, list[int], list[int], int]:
    """Return that a stream does not capture, and nothing of a graph."""
    me = client()
    me.stream(hStream, me.context())
    return SUCCESS, CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE, 0, 0, [], [], 0


@api(outputs=1)
def cuStreamGetId(hStream: Any) -> tuple[CUresult, int]:
    """Return a number that no other stream has."""
    me = client()
    stream = me.stream(hStream, me.context())
    return SUCCESS, stream.handle or stream.context.identity


@api(outputs=1)
def cuStreamGetDevice(hStream: Any) -> tuple[CUresult, CUdevice]:
    """Return the device that a stream's context is on."""
    me = client()
    return SUCCESS, CUdevice(me.stream(hStream, me.context()).context.device.ordinal)


@api(outputs=1)
def cuStreamGetAttribute(hStream: Any, attr: CUlaunchAttributeID) -> tuple[CUresult, Any]:
    """Return an attribute of a stream, as it was set; 0 if it was not."""
    me = client()
    stream, number = me.stream(hStream, me.context()), as_int(attr)
    require(number in _ATTRIBUTES)
    if number == CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY:
        return SUCCESS, stream.attributes.get(number, stream.priority)
    return SUCCESS, stream.attributes.get(number, 0)


@api()
def cuStreamSetAttribute(hStream: Any, attr: CUlaunchAttributeID, value: Any) -> tuple[CUresult]:
    """Set an attribute of a stream: all that there are only say how work may be made faster."""
    me = client()
    stream = me.stream(hStream, me.context())
    require(as_int(attr) in _ATTRIBUTES and value is not None)
    stream.attributes[as_int(attr)] = value
    return OK


@api()
def cuStreamCopyAttributes(dst: Any, src: Any) -> tuple[CUresult]:
    """Set all attributes of a stream as they are of another one in its context."""
    me = client()
    context = me.context()
    target, source = me.stream(dst, context), me.stream(src, context)
    require(target.context is source.context)
    target.attributes = dict(source.attributes)
    return OK
