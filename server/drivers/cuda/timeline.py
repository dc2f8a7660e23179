"""Which work is done: marks in streams, tickets that name them, gates between streams.

A mark is an event of our own, recorded when somebody first asks for the place it stands at.
Work is marked before work of another stream comes that its mark would otherwise wait for:
the legacy stream and the blocking streams are ordered with each other, and a mark that is
recorded too late would make a wait depend on work that was issued after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from outlast.server.drivers.cuda.objects import NOT_READY, Context, Mark, Stream

#: Of our own marks: no time is taken, which makes the record cheap.
PLAIN = 2  # CU_EVENT_DISABLE_TIMING
#: Events made ahead, so that making some later does not move what a module's load gets.
AHEAD = 64
#: Tickets kept before those that are done are looked for.
MANY_TICKETS = 4096

# A ticket is its newest mark's number plus what kind of wait it is.
_STEP, _LEGACY, _ALL = 4, 1, 2


class Timeline:
    """Marks, tickets and gates of one worker.

    Parameters
    ----------
    cuda : Any
        `cuda.bindings.driver`.
    failed : callable
        Told of every result but success, with its ``CUresult`` value.
    contexts : callable
        Returns the live contexts.
    """

    def __init__(
        self,
        cuda: Any,
        failed: Callable[[int], int],
        contexts: Callable[[], Iterable[Context]],
    ) -> None:
        self._cuda = cuda
        self._record = cuda.cuEventRecord
        self._query = cuda.cuEventQuery
        self._failed = failed
        self._contexts = contexts
        self._number = 0
        self._tickets: dict[int, tuple[Mark, ...]] = {}
        self._many = MANY_TICKETS
        #: By source stream: (number of the gate, mark that later work waits for).
        self._gates: dict[Stream, tuple[int, Mark]] = {}
        self._last_gate = 0
        #: Grows when streams have something to look at before their next work.
        self.epoch = 0

    # -- issuing -------------------------------------------------------------------------------

    def begin(self, stream: Stream) -> None:
        """Make ``stream`` ready for more work: what the work must wait for is enqueued."""
        if stream.epoch != self.epoch:
            self.attend(stream)

    def attend(self, stream: Stream) -> None:
        """Do what `begin` does for a stream that has something to look at."""
        context = stream.context
        legacy = context.legacy
        if stream is legacy:
            for other in (context.per_thread, *context.streams.values()):
                if other.dirty and other.blocking:
                    self.mark(other)
        elif stream.blocking and legacy.dirty:
            self.mark(legacy)
        if stream.gates < self._last_gate:
            self._pass_gates(stream)
        stream.epoch = self.epoch

    def issued(self, stream: Stream) -> None:
        """Note work that was just issued."""
        if not stream.dirty:
            stream.dirty = True
            if stream.blocking:
                self.epoch += 1
                stream.epoch = self.epoch

    def mark(self, stream: Stream, flags: int = PLAIN) -> Mark:
        """Mark the place where a stream is now."""
        context = stream.context
        spare = context.spare.setdefault(flags, [])
        if not spare:
            self.stock(context, flags, 1)
        raw = spare.pop()
        self._number += _STEP
        mark = Mark(raw, spare, stream, self._number)
        error = self._record(raw, stream.raw)[0]
        if error:
            self._failed(int(error))
            mark.done = True
        stream.mark = mark
        stream.dirty = False
        return mark

    def stock(self, context: Context, flags: int, count: int) -> None:
        """Make unused events."""
        spare = context.spare.setdefault(flags, [])
        self._cuda.cuCtxPushCurrent(context.handle)
        for _ in range(count):
            error, raw = self._cuda.cuEventCreate(flags)
            if error:
                self._failed(int(error))
                raw = self._cuda.CUevent(0)
            spare.append(raw)
        self._cuda.cuCtxPopCurrent()

    def gate(self, mark: Mark) -> None:
        """Let everything issued from now on, in any stream, run behind ``mark``."""
        self._last_gate += 1
        self._gates[mark.stream] = (self._last_gate, mark)
        self.epoch += 1

    def _pass_gates(self, stream: Stream) -> None:
        for source, (number, mark) in list(self._gates.items()):
            if self.finished(mark):
                del self._gates[source]
            elif number > stream.gates and not _ordered(source, stream):
                error = self._cuda.cuStreamWaitEvent(stream.raw, mark.raw, 0)[0]
                if error:
                    self._failed(int(error))
        stream.gates = self._last_gate

    # -- asking --------------------------------------------------------------------------------

    def finished(self, mark: Mark) -> bool:
        """Return whether the device has passed a mark (or will never, after a fault)."""
        if mark.done:
            return True
        error = int(self._query(mark.raw)[0]) if mark.stream.context.alive else 0
        if error == NOT_READY:
            return False
        mark.done = True
        landings = mark.stream.landings
        if error:
            self._failed(error)
            landings.clear()
        while landings and landings[0][0] <= mark.number:
            _, source, target = landings.popleft()
            target[:] = source
        return True

    def ticket(self, stream: Stream) -> int:
        """Name a stream's work; the legacy stream's includes what that waits for."""
        context = stream.context
        if stream is context.legacy:
            blocking = [s for s in context.all_streams() if s.blocking]
            orphans = [m for m in context.orphans if m.stream.blocking and not self.finished(m)]
            return self._name([*self._unfinished(blocking), *orphans], _LEGACY)
        if stream.dirty:
            return self.name(self.mark(stream))
        if stream.mark is None:
            return 0
        if self.finished(stream.mark):
            stream.mark = None
            return 0
        return self.name(stream.mark)

    def fence(self) -> int:
        """Name all work issued so far, in every stream of every context."""
        marks: list[Mark] = []
        for context in self._contexts():
            marks += self._unfinished(context.all_streams())
            context.orphans = [m for m in context.orphans if not self.finished(m)]
            marks += context.orphans
        return self._name(marks, _ALL)

    def idle(self) -> bool:
        """Return whether the device is known to have done everything; nothing is marked for it."""
        for context in self._contexts():
            for stream in context.all_streams():
                if stream.dirty or (stream.mark is not None and not self.finished(stream.mark)):
                    return False
            if not all(map(self.finished, context.orphans)):
                return False
        return True

    def name(self, mark: Mark) -> int:
        """Return the ticket of one mark."""
        if mark.done:
            return 0
        if mark.number not in self._tickets:
            self._keep(mark.number, (mark,))
        return mark.number

    def done(self, ticket: int) -> bool:
        """Return whether the work behind a ticket has completed, or a fault ended it."""
        marks = self._tickets.get(ticket)
        if marks is None:
            return True
        for mark in marks:
            if not (mark.done or self.finished(mark)):
                return False
        del self._tickets[ticket]
        return True

    def open(self, ticket: int) -> list[Mark]:
        """Return the marks of a ticket that are not passed yet."""
        return [m for m in self._tickets.get(ticket, ()) if not self.finished(m)]

    def order_after(self, fence: int) -> None:
        """Let everything issued from now on, in any stream, run behind a ticket's work."""
        for mark in self.open(fence):
            self.gate(mark)

    def follow(self, stream: Stream, ticket: int) -> None:
        """Let everything issued from now on in ``stream`` run behind a ticket's work."""
        marks = [m for m in self.open(ticket) if not _ordered(m.stream, stream)]
        if not marks:
            return
        self.begin(stream)
        for mark in marks:
            error = self._cuda.cuStreamWaitEvent(stream.raw, mark.raw, 0)[0]
            if error:
                self._failed(int(error))
        self.issued(stream)

    def spin(self, tickets: Sequence[int], seconds: float) -> bool:
        """Ask again and again until one of the tickets is done; False after ``seconds``."""
        end = monotonic() + seconds
        while True:
            if any(map(self.done, tickets)):
                return True
            if monotonic() >= end:
                return False

    def orphan(self, stream: Stream) -> None:
        """Keep the work of a stream that is about to be destroyed in mind."""
        stream.context.orphans += self._unfinished([stream])

    def forget(self, context: Context) -> None:
        """Take in that a context is destroyed."""
        context.alive = False
        for source in [s for s in self._gates if s.context is context]:
            del self._gates[source]

    def _unfinished(self, streams: Iterable[Stream]) -> list[Mark]:
        """Return a mark of each stream with work under way, made now where there is none."""
        marks = []
        for stream in streams:
            if stream.dirty:
                marks.append(self.mark(stream))
            elif stream.mark is not None:
                if self.finished(stream.mark):
                    stream.mark = None
                else:
                    marks.append(stream.mark)
        return marks

    def _name(self, marks: list[Mark], kind: int) -> int:
        if not marks:
            return 0
        # The same marks get the same ticket, however often they are asked for: numbers tell
        # what was issued before what.
        ticket = max(m.number for m in marks) + kind
        if ticket not in self._tickets:
            self._keep(ticket, tuple(marks))
        return ticket

    def _keep(self, ticket: int, marks: tuple[Mark, ...]) -> None:
        if len(self._tickets) > self._many:
            self._tidy()
        self._tickets[ticket] = marks

    def _tidy(self) -> None:
        for ticket in list(self._tickets):
            self.done(ticket)
        self._many = max(MANY_TICKETS, 2 * len(self._tickets))


def _ordered(source: Stream, stream: Stream) -> bool:
    """Return whether CUDA itself orders new work of ``stream`` behind old work of ``source``."""
    if source is stream:
        return True
    context = stream.context
    if source.context is not context or not (source.blocking and stream.blocking):
        return False
    return context.legacy in (source, stream)
