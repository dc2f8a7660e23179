"""Streams, events and host memory of `cuda.bindings.driver` whose work ends when a test says so.

What waits for what follows CUDA: work of a stream waits for the work before it, and the
legacy stream and the blocking streams wait for each other.
"""

from __future__ import annotations

from typing import Any

from outlast.server.drivers.cuda.objects import Context, Stream
from outlast.server.drivers.cuda.timeline import Timeline

LEGACY, PER_THREAD = 0, 2
NON_BLOCKING = 1
NOT_READY = 600


class Work:
    """Something in a stream; it is done when a test has ended it and all before it is done."""

    def __init__(self, before: list[Work], ended: bool = False) -> None:
        self._before = [work for work in before if not work.done]
        self.ended = ended

    @property
    def done(self) -> bool:
        """Whether the device has passed it."""
        return self.ended and all(work.done for work in self._before)


class FakeCuda:
    """As much of the driver as order, waiting and staging need."""

    CUstream = int
    CUevent = int

    def __init__(self) -> None:
        self._tails: dict[int, list[Work]] = {}
        self._blocking: dict[int, bool] = {LEGACY: True, PER_THREAD: True}
        self._events: dict[int, Work] = {}
        self._next = 0x100
        #: Addresses of pinned memory.
        self.registered: set[int] = set()
        #: What every query returns instead of the truth, after a fault.
        self.sticky = 0
        self.records = 0

    # -- for tests -----------------------------------------------------------------------------

    def work(self, stream: int, ended: bool = False) -> Work:
        """Issue work to a stream."""
        before = list(self._tails.get(stream, []))
        if stream == LEGACY:
            before += [w for s, t in self._tails.items() if self._blocking[s] for w in t]
        elif self._blocking[stream]:
            before += self._tails.get(LEGACY, [])
        work = Work(before, ended)
        self._tails[stream] = [work]
        return work

    # -- CUDA's names --------------------------------------------------------------------------

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[int, int]:
        self._next += 16
        self._blocking[self._next] = not flags & NON_BLOCKING
        return 0, self._next

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        self._next += 16
        return 0, self._next

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.records += 1
        self._events[event] = self.work(stream, ended=True)
        return (self.sticky,)

    def cuEventQuery(self, event: int) -> tuple[int]:
        if self.sticky:
            return (self.sticky,)
        return (0 if self._events[event].done else NOT_READY,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        assert self._events[event].done, "a test would wait for ever"
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        work = self.work(stream, ended=True)
        work._before.append(self._events[event])
        return (0,)

    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, 0

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[int]:
        self.registered.add(address)
        return (0,)

    def cuMemHostUnregister(self, address: int) -> tuple[int]:
        self.registered.remove(address)
        return (0,)


class Bench:
    """A timeline with one context."""

    def __init__(self, cuda: FakeCuda | None = None) -> None:
        self.cuda = cuda or FakeCuda()
        self.errors: list[int] = []
        self.context = Context(1, device=None)  # type: ignore[arg-type]
        self.context.legacy = Stream(0, 0, self.context)
        self.context.per_thread = Stream(2, 2, self.context)
        self.timeline = Timeline(self.cuda, self._failed, lambda: [self.context])

    def _failed(self, error: int) -> int:
        self.errors.append(error)
        return error

    def stream(self, blocking: bool = False) -> Stream:
        """Make a stream."""
        raw = self.cuda.cuStreamCreateWithPriority(int(not blocking), 0)[1]
        stream = Stream(raw, raw, self.context, blocking=blocking)
        self.context.streams[raw] = stream
        return stream

    def issue(self, stream: Stream) -> Any:
        """Issue work as the driver does; it lasts until the test ends it."""
        self.timeline.begin(stream)
        work = self.cuda.work(stream.raw)
        self.timeline.issued(stream)
        return work
