"""Host functions: the program's own, run when a stream gets there.

The server tells when the stream's work before one is done, and it is run here, in a thread of its
stream. What the program gives that stream later is held back in the thread that gives it until
the function has ended, and so is what the legacy stream and the blocking ones have to wait for
of each other. CUDA would take such work at once; a function that waits for what its program does
only after giving that work would wait for ever, so a long wait is logged.

A worker that dies costs nothing: what the server was asked is asked again, and what has run is
not run again. So a stream has to be there until its functions have ended.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from outlast.cuda_types import CUstream_flags
from outlast.errors import OutlastError
from outlast.session.operations import Op
from outlast.shim.linkage import Landing, Link
from outlast.shim.objects import Context, Stream

log = logging.getLogger("outlast")

#: After so long the program is told what it waits for.
LONG = 10.0  # seconds


class _Call:
    """One function in its place."""

    __slots__ = ("before", "ended", "reached", "run", "stream")

    def __init__(
        self, stream: Stream, reached: Landing, run: Callable[[int], None], before: list[_Call]
    ) -> None:
        self.stream = stream
        #: Tells when the stream is there.
        self.reached = reached
        self.run = run
        #: Calls of other streams that come first.
        self.before = before
        self.ended = threading.Event()


class HostFunctions:
    """Functions that have not ended yet.

    Parameters
    ----------
    link
        Tells when a stream is where a function is.
    forbid
        Called in each thread that runs them: CUDA cannot be called there.
    """

    def __init__(self, link: Link, forbid: Callable[[], None]) -> None:
        self._link = link
        self._forbid = forbid
        self._lock = threading.Lock()
        self._queues: dict[Stream, deque[_Call]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, stream: Stream, run: Callable[[int], None], others: list[Stream]) -> None:
        """Have a function run where a stream is now.

        Parameters
        ----------
        run
            Is given the ``CUresult`` value of the work before it.
        others
            The context's other streams.
        """
        reached = self._link.watch(Op.STREAM_SYNC, stream.handle)
        with self._lock:
            ordered = [other for other in others if _ordered(stream, other)]
            before = [call for other in ordered for call in self._queues.get(other, ())]
            queue = self._queues.setdefault(stream, deque())
            queue.append(_Call(stream, reached, run, before))
            alone = len(queue) == 1
        for held in (stream, *others):
            held.look_at = 0  # whoever gives it work looks here first
        if alone:
            self._start(stream)

    def holds(self, stream: Stream) -> bool:
        """Return whether work for a stream has to wait."""
        return bool(self._queues) and bool(self._calls_before(stream))

    def wait_before(self, stream: Stream) -> None:
        """Wait for the functions that come before new work of a stream."""
        if self._queues:
            _wait(self._calls_before(stream))

    def wait_for_stream(self, stream: Stream) -> None:
        """Wait for the functions of a stream itself."""
        if self._queues:
            with self._lock:
                calls = list(self._queues.get(stream, ()))
            _wait(calls)

    def wait_for_context(self, context: Context) -> None:
        """Wait for all functions of a context."""
        if self._queues:
            with self._lock:
                calls = [call for queue in self._queues.values() for call in queue]
            _wait([call for call in calls if call.stream.context is context])

    def _calls_before(self, stream: Stream) -> list[_Call]:
        with self._lock:
            streams = [s for s in self._queues if s is stream or _ordered(stream, s)]
            return [call for other in streams for call in self._queues[other]]

    # -- in a thread of a stream ---------------------------------------------------------------

    def _start(self, stream: Stream) -> None:
        thread = threading.Thread(
            target=self._run, args=(stream,), name="host functions", daemon=True
        )
        thread.start()

    def _run(self, stream: Stream) -> None:
        self._forbid()
        call: _Call | None = self._queues[stream][0]
        while call is not None:
            try:
                self._run_one(call)
            except BaseException:
                # The program's function has raised: that ends this thread, and no other function.
                if self._end(call) is not None:
                    self._start(stream)
                raise
            call = self._end(call)

    def _run_one(self, call: _Call) -> None:
        try:
            call.reached.wait()
        except OutlastError:
            return  # the link has ended; every call of the program says why
        for other in call.before:
            other.ended.wait()
        call.run(call.reached.result)

    def _end(self, call: _Call) -> _Call | None:
        """Forget a call that has ended; return the next one of its stream."""
        with self._lock:
            queue = self._queues[call.stream]
            queue.popleft()
            if not queue:
                del self._queues[call.stream]
        call.ended.set()
        return queue[0] if queue else None


def _ordered(one: Stream, other: Stream) -> bool:
    """Return whether two streams wait for each other, as the legacy one and blocking ones do."""
    if one is other or one.context is not other.context or (one.handle and other.handle):
        return False
    return not (one.flags | other.flags) & CUstream_flags.CU_STREAM_NON_BLOCKING


def _wait(calls: list[_Call]) -> None:
    for call in calls:
        if not call.ended.wait(LONG):
            log.warning(
                "a call waits for a host function of its stream, which has not ended in %g s",
                LONG,
                extra={"action": "host_function_slow"},
            )
            call.ended.wait()
