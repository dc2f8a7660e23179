"""How much unfinished work each stream may have: a thread waits here, never the server's executor.

A device takes about a thousand operations of a stream ahead; a call that finds its queue full
blocks until some are done. Where calls of all threads go through one executor, that would hold
up the very call that lets the stream go on. So operations are counted here: a thread whose
stream has as many unfinished ones as it may have waits, and all others go on.

What is done is learnt from the waits of the program. For a stream without such waits the end of
its work so far is asked for at each half of its credits, so that it is seldom waited for.
"""

from __future__ import annotations

import threading

from outlast.session.operations import Op
from outlast.shim.host_functions import HostFunctions
from outlast.shim.linkage import Link
from outlast.shim.objects import Stream


class Credits:
    """Counts operations of streams.

    Parameters
    ----------
    link
        Carries the questions.
    limit
        Unfinished operations that a stream may have.
    functions
        Host functions, which hold work of their streams back.
    """

    def __init__(self, link: Link, limit: int, functions: HostFunctions) -> None:
        self._link = link
        self._functions = functions
        self._limit = limit
        self._step = max(1, limit // 2)
        self._lock = threading.Lock()

    def take(self, stream: Stream) -> None:
        """Have room for one more operation; a copy may be as long as it is.

        Only to be called with ``stream.taken >= stream.look_at``; there is room otherwise.
        """
        while True:
            self._functions.wait_before(stream)
            with self._lock:
                self._look(stream)
                if self._functions.holds(stream):
                    # One was added just now, and may have been before the look.
                    stream.look_at = 0
                    continue
                if stream.taken < stream.look_at:
                    return
                oldest = stream.marks[0][1]
            oldest.wait()

    def _look(self, stream: Stream) -> None:
        """Take in what is done, and ask for the end of what is there by now if it is time."""
        marks = stream.marks
        while marks and (marks[0][0] <= stream.finished or marks[0][1].done):
            stream.finished = max(stream.finished, marks.popleft()[0])
        if stream.last <= max(stream.done, stream.context.done):
            stream.finished = stream.taken
        newest = marks[-1][0] if marks else stream.finished
        if stream.taken - newest >= self._step:
            newest = stream.taken
            marks.append((newest, self._link.watch(Op.STREAM_SYNC, stream.handle)))
        stream.look_at = min(newest + self._step, stream.finished + self._limit)
