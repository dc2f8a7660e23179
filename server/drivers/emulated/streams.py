"""Calls about streams and events."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUevent_flags, CUstream_flags
from outlast.server.drivers.emulated.objects import Event, Stream
from outlast.server.drivers.emulated.results import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    Refusal,
    cuda_call,
    number,
)
from outlast.server.drivers.emulated.state import DriverState

_NON_BLOCKING = int(CUstream_flags.CU_STREAM_NON_BLOCKING)
_EVENT_FLAGS = (
    CUevent_flags.CU_EVENT_BLOCKING_SYNC
    | CUevent_flags.CU_EVENT_DISABLE_TIMING
    | CUevent_flags.CU_EVENT_INTERPROCESS
)


class StreamCalls(DriverState):
    """Streams."""

    @cuda_call(1)
    def cuStreamCreate(self, Flags: Any = 0) -> int:
        """Create a stream."""
        return self._new_stream(number(Flags), 0)

    @cuda_call(1)
    def cuStreamCreateWithPriority(self, flags: Any, priority: Any) -> int:
        """Create a stream with a priority, which changes nothing here."""
        return self._new_stream(number(flags), number(priority))

    def _new_stream(self, flags: int, priority: int) -> int:
        context = self._context()
        if flags & ~_NON_BLOCKING:
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            handle = self._streams.new()
            stream = Stream(handle, context, flags, priority, blocking=not flags & _NON_BLOCKING)
            self._streams.put(handle, stream)
        return handle

    @cuda_call()
    def cuStreamDestroy(self, hStream: Any) -> None:
        """Destroy a stream; its work goes on."""
        handle = number(hStream)
        with self.engine.lock:
            if self._streams.get(handle) is None:
                raise Refusal(INVALID_HANDLE)
            self._streams.drop(handle)

    @cuda_call()
    def cuStreamSynchronize(self, hStream: Any) -> None:
        """Wait for a stream's work so far."""
        stream = self._stream(hStream)
        self._finish(stream.context.stream_ticket(stream))

    @cuda_call()
    def cuStreamQuery(self, hStream: Any) -> None:
        """Tell whether a stream's work so far is done."""
        stream = self._stream(hStream)
        if not self.engine.done(stream.context.stream_ticket(stream)):
            raise Refusal(NOT_READY)

    @cuda_call()
    def cuStreamWaitEvent(self, hStream: Any, hEvent: Any, Flags: Any = 0) -> None:
        """Make later work of a stream wait for an event's latest record."""
        stream, event = self._stream(hStream), self._event(hEvent)
        # Issue order keeps the order of the work; a wait for the stream must include it.
        with self.engine.lock:
            stream.issued(max(stream.context.stream_ticket(stream), event.ticket))

    @cuda_call(1)
    def cuStreamGetFlags(self, hStream: Any) -> int:
        """Return a stream's flags."""
        return self._stream(hStream).flags

    @cuda_call(1)
    def cuStreamGetPriority(self, hStream: Any) -> int:
        """Return a stream's priority."""
        return self._stream(hStream).priority


class EventCalls(DriverState):
    """Events."""

    @cuda_call(1)
    def cuEventCreate(self, Flags: Any = 0) -> int:
        """Create an event."""
        context, flags = self._context(), number(Flags)
        if flags & ~_EVENT_FLAGS:
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            handle = self._events.new()
            self._events.put(handle, Event(handle, context, flags))
        return handle

    @cuda_call()
    def cuEventDestroy(self, hEvent: Any) -> None:
        """Destroy an event."""
        with self.engine.lock:
            event = self._event(hEvent)
            self.engine.keep(event)  # a record that is queued still writes its time
            self._events.drop(event.handle)

    @cuda_call()
    def cuEventRecord(self, hEvent: Any, hStream: Any = 0) -> None:
        """Mark the place of a stream where it is now."""
        event, stream = self._event(hEvent), self._stream(hStream)
        if event.context is not stream.context:
            raise Refusal(INVALID_HANDLE)
        with self.engine.lock:
            event.ticket = self.engine.stamp(self.tag, event.address)
            stream.issued(event.ticket)

    @cuda_call()
    def cuEventQuery(self, hEvent: Any) -> None:
        """Tell whether an event's latest record has been passed."""
        if not self.engine.done(self._event(hEvent).ticket):
            raise Refusal(NOT_READY)

    @cuda_call()
    def cuEventSynchronize(self, hEvent: Any) -> None:
        """Wait for an event's latest record."""
        self._finish(self._event(hEvent).ticket)

    @cuda_call(1)
    def cuEventElapsedTime(self, hStart: Any, hEnd: Any) -> float:
        """Return the milliseconds between two records."""
        start, end = self._event(hStart), self._event(hEnd)
        if not (start.timed and end.timed and start.ticket and end.ticket):
            raise Refusal(INVALID_HANDLE)
        if not (self.engine.done(start.ticket) and self.engine.done(end.ticket)):
            raise Refusal(NOT_READY)
        return (end.stamp.value - start.stamp.value) / 1e6
