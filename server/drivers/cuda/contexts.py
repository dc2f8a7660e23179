"""Calls about contexts, streams and events."""

from __future__ import annotations

from typing import Any

from outlast.server.drivers.cuda.objects import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    Context,
    Event,
    Stream,
)
from outlast.server.drivers.cuda.peers import PeerCalls

_NON_BLOCKING = 1
#: Flags of client events: waiting is our own affair, so blocking ones need no event of that kind.
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2
_EVENT_FLAGS = _BLOCKING_SYNC | _DISABLE_TIMING


class ContextCalls(PeerCalls):
    """Primary and other contexts."""

    def cuDriverGetVersion(self) -> tuple[int, int]:
        """Return the CUDA version of the driver."""
        error, version = self.cuda.cuDriverGetVersion()
        return int(error), int(version)

    def cuDevicePrimaryCtxRetain(self, dev: int) -> tuple[int, int]:
        """Retain a device's primary context."""
        device = self._device(dev)
        if device is None:
            return INVALID_DEVICE, 0
        context = self._open(device)
        device.retains += 1
        return 0, context.handle

    def cuDevicePrimaryCtxRelease(self, dev: int) -> tuple[int]:
        """Give a retain back; the last one destroys what the context owns.

        The context itself stays: this driver works in it.
        """
        device = self._device(dev)
        if device is None:
            return (INVALID_DEVICE,)
        if not device.retains or device.primary is None:
            return (INVALID_CONTEXT,)
        device.retains -= 1
        if not device.retains:
            self._empty(device.primary)
        return (0,)

    def cuDevicePrimaryCtxReset(self, dev: int) -> tuple[int]:
        """Destroy what a primary context owns."""
        device = self._device(dev)
        if device is None:
            return (INVALID_DEVICE,)
        if device.primary is not None:
            self._empty(device.primary)
        return (0,)

    def cuCtxCreate(self, ctxCreateParams: Any, flags: int, dev: int) -> tuple[int, int]:
        """Create a context and make it current."""
        device = self._device(dev)
        if device is None:
            return INVALID_DEVICE, 0
        self._open(device)
        self._bury()
        error, raw = self.cuda.cuCtxCreate(None, flags, dev)
        if error:
            return self.failed(int(error)), 0
        # It was pushed; this driver only ever replaces what is current.
        self.cuda.cuCtxPopCurrent()
        context = self._add_context(int(raw), device)
        return self._make_current(context), context.handle

    def cuCtxDestroy(self, ctx: int) -> tuple[int]:
        """Destroy a context with all it owns, once its work is done: CUDA would wait for that."""
        context = self._contexts.get(int(ctx))
        if context is None or context is context.device.primary:
            return (INVALID_CONTEXT,)
        with self.within(context):
            self._empty(context)
            for stream in (context.legacy, context.per_thread):
                self.staging.release(stream)
        self._dying.append((self.timeline.fence(), context))
        del self._contexts[context.handle]
        if self._current is context:
            self._make_current(None)
        return (self._bury(),)

    def _bury(self) -> int:
        """Destroy the contexts whose work is done; return a ``CUresult`` value."""
        code, left = 0, []
        for ticket, context in self._dying:
            if not self.timeline.done(ticket):
                left.append((ticket, context))
                continue
            self._watchers.close(context)
            code = code or self._result(self.cuda.cuCtxDestroy(context.handle))
            self.timeline.forget(context)
            self._leaving = [(t, m) for t, m in self._leaving if m.context is not context]
        self._dying = left
        return code

    def cuCtxSetCurrent(self, ctx: int) -> tuple[int]:
        """Make a context current; 0 for none."""
        context = self._contexts.get(int(ctx))
        if ctx and context is None:
            return (INVALID_CONTEXT,)
        return (self._make_current(context),)

    def cuCtxGetLimit(self, limit: int) -> tuple[int, int]:
        """Return a limit of the current context."""
        try:
            error, value = self.cuda.cuCtxGetLimit(self.cuda.CUlimit(limit))
        except ValueError:
            return INVALID_VALUE, 0
        return (self.failed(int(error)), 0) if error else (0, int(value))

    def cuCtxSetLimit(self, limit: int, value: int) -> tuple[int]:
        """Set a limit of the current context, until that is reset."""
        error, before = self.cuCtxGetLimit(limit)
        if error or self._current is None:
            return (error or INVALID_CONTEXT,)
        code = self._result(self.cuda.cuCtxSetLimit(self.cuda.CUlimit(limit), value))
        if not code:
            self._current.limits.setdefault(limit, before)
        return (code,)

    def _result(self, answer: tuple[Any, ...]) -> int:
        """Return the result of a call that gives nothing else."""
        return self.failed(int(answer[0])) if answer[0] else 0

    def _empty(self, context: Context) -> None:
        """Destroy everything that a context owns."""
        self._leave_peers(context)
        for limit, value in context.limits.items():
            with self.within(context):
                self.cuda.cuCtxSetLimit(self.cuda.CUlimit(limit), value)
        context.limits.clear()
        for module in list(context.modules):
            self._drop_module(module)
        for event in list(context.events):
            self._drop_event(self._events[event])
        for stream in list(context.streams.values()):
            self._drop_stream(stream)
        for address in list(context.memory):
            context.device.arena.release(address)
        context.memory.clear()

    def _drop_module(self, handle: int) -> int:
        raise NotImplementedError

    def _drop_event(self, event: Event) -> None:
        del self._events[event.handle]
        event.context.events.discard(event.handle)

    def _drop_stream(self, stream: Stream) -> int:
        self.timeline.orphan(stream)
        self.staging.release(stream)
        self._watchers.forget(stream)
        del self._streams[stream.handle], stream.context.streams[stream.handle]
        return self._result(self.cuda.cuStreamDestroy(stream.raw))


class StreamCalls(ContextCalls):
    """Streams."""

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[int, int]:
        """Create a stream in the current context."""
        context = self._current
        if context is None:
            return INVALID_CONTEXT, 0
        error, raw = self.cuda.cuStreamCreateWithPriority(flags, priority)
        if error:
            return self.failed(int(error)), 0
        stream = Stream(int(raw), raw, context, blocking=not flags & _NON_BLOCKING)
        self._streams[stream.handle] = context.streams[stream.handle] = stream
        return 0, stream.handle

    def cuStreamDestroy(self, hStream: int) -> tuple[int]:
        """Destroy a stream; its work goes on."""
        stream = self._streams.get(hStream)
        if stream is None or stream.handle not in stream.context.streams:
            return (INVALID_HANDLE,)
        return (self._drop_stream(stream),)

    def cuStreamWaitEvent(self, hStream: int, hEvent: int, Flags: int = 0) -> tuple[int]:
        """Make later work of a stream wait for an event's latest record."""
        stream, event = self._streams.get(hStream), self._events.get(hEvent)
        if stream is None or event is None:
            return (INVALID_HANDLE,)
        if event.mark is None or event.mark.done:
            return (0,)
        self.timeline.begin(stream)
        answer = self.cuda.cuStreamWaitEvent(stream.raw, event.mark.raw, 0)
        self.timeline.issued(stream)
        return (self._result(answer),)


class EventCalls(StreamCalls):
    """Events: names for the latest of their marks."""

    def cuEventCreate(self, Flags: int = 0) -> tuple[int, int]:
        """Create an event in the current context."""
        context = self._current
        if context is None:
            return INVALID_CONTEXT, 0
        if Flags & ~_EVENT_FLAGS:
            return INVALID_VALUE, 0
        self._next_event += 16
        event = Event(self._next_event, context, Flags & _DISABLE_TIMING)
        self._events[event.handle] = event
        context.events.add(event.handle)
        return 0, event.handle

    def cuEventDestroy(self, hEvent: int) -> tuple[int]:
        """Destroy an event; waits for its record stand."""
        event = self._events.get(hEvent)
        if event is None:
            return (INVALID_HANDLE,)
        self._drop_event(event)
        return (0,)

    def cuEventRecord(self, hEvent: int, hStream: int = 0) -> tuple[int]:
        """Let an event name the place where a stream is now."""
        event, stream = self._events.get(hEvent), self._streams.get(hStream)
        if event is None or stream is None or event.context is not stream.context:
            return (INVALID_HANDLE,)
        self.timeline.begin(stream)
        # Noted as work first: others that are ordered with this stream have to be marked.
        self.timeline.issued(stream)
        event.mark = self.timeline.mark(stream, event.flags)
        return (self._fault.result if self._fault is not None else 0,)

    def cuEventElapsedTime(self, hStart: int, hEnd: int) -> tuple[int, float]:
        """Return the milliseconds between two records."""
        start, end = self._events.get(hStart), self._events.get(hEnd)
        if start is None or end is None or start.mark is None or end.mark is None:
            return INVALID_HANDLE, 0.0
        if (start.flags | end.flags) & _DISABLE_TIMING:
            return INVALID_HANDLE, 0.0
        error, milliseconds = self.cuda.cuEventElapsedTime(start.mark.raw, end.mark.raw)
        if error:
            code = int(error)
            return code if code == NOT_READY else self.failed(code), 0.0
        return 0, float(milliseconds)
