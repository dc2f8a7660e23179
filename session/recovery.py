"""Whether an error that ends a context is recovered from, instead of being reported.

Such an error says nothing of the call log: replayed in a new worker, the same calls may well
succeed, if what failed was the device or somebody else on it. If they are the program's own
doing, they fail again. An error names the newest call that can have caused it; so can each
call back to the last one that is known to have gone well. Two errors that can have the same
cause are taken to have it.
"""

from __future__ import annotations

from outlast.session.cuda import is_sticky
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind
from outlast.session.wire import Reply

#: Their success says that what came before them has not failed.
WITNESSES = (Op.CTX_SYNC, Op.COPY_DTOH)


class FaultRecovery:
    """What a client has made of the errors that ended its contexts.

    Parameters
    ----------
    enabled : bool
        Without it every error is the program's.
    """

    #: Recoveries without a newer epoch in between.
    MOST = 3

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        #: The worker is given up; the next HELLO asks for a fresh one.
        self.wanted = False
        #: What happened last, for the log.
        self.reason = ""
        #: Fresh workers that this client has asked for and got.
        self.count = 0
        #: First and last call that may have caused each error, until an epoch holds them.
        self._suspects: list[tuple[int, int]] = []
        self._tries = 0
        #: Last call known to have gone well in the present worker.
        self._good = 0
        self._epoch = 0

    def claims(self, reply: Reply, newest: int) -> bool:
        """Return whether a reply is kept from the program, and a fresh worker is wanted.

        Parameters
        ----------
        reply
            One that says that something failed.
        newest
            Last call made so far.
        """
        if not self.enabled or not is_sticky(reply.result):
            return False
        last = newest if reply.kind == ReplyKind.ANSWER else reply.number
        first = min(self._good + 1, last)
        again = any(first <= end and begin <= last for begin, end in self._suspects)
        if again or self._tries >= self.MOST:
            self.enabled = False  # it is reported, and CUDA reports it for good
            return False
        self.reason = f"error {reply.result}, noticed at call {last}, has ended its contexts"
        self._suspects.append((first, last))
        self._tries += 1
        self.wanted = True
        return True

    def went_well(self, op: Op, seq: int) -> None:
        """Note that a call has succeeded for which the program had to wait."""
        if op in WITNESSES and seq > self._good:
            self._good = seq

    def attached(self, applied: int) -> None:
        """Note an attachment to a worker that has applied so many calls."""
        self.count += self.wanted
        self.wanted = False
        self._good = min(self._good, applied)

    def committed(self, seq: int) -> None:
        """Note an epoch: no call up to its own has failed."""
        self._good = max(self._good, seq)
        if seq > self._epoch:
            self._epoch, self._tries = seq, 0
            self._suspects = [(first, last) for first, last in self._suspects if last > seq]
