"""What a program has been told is done, for the log: replay has to keep that order.

A program that waits for one stream and then gives work to another relies on the wait, and
nothing else orders the two. A replay does not wait where the program did. So both stand in
the log, each in front of the call behind it: what was waited for (MARKED), and that the
program knew of its end (WAITED). There the replay lets everything run behind that work. If no
call came in between, WAITED alone says both.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.session import wire
from outlast.session.operations import Op

#: What an answer tells the end of: a stream's work, an event's record, all work.
_WHAT = {
    Op.STREAM_SYNC: Op.STREAM_SYNC,
    Op.STREAM_QUERY: Op.STREAM_SYNC,
    Op.COPY_DTOH: Op.STREAM_SYNC,
    Op.COPY_DTOH_2D: Op.STREAM_SYNC,
    Op.EVENT_SYNC: Op.EVENT_SYNC,
    Op.EVENT_QUERY: Op.EVENT_SYNC,
    Op.EVENT_ELAPSED: Op.EVENT_SYNC,
    Op.CTX_SYNC: Op.CTX_SYNC,
}
#: Records kept for the next time: programs wait for few things again and again.
_MANY = 1024


class End:
    """The end of some work that somebody has asked for."""

    __slots__ = ("number", "waited")

    def __init__(self, waited: bytes) -> None:
        #: What the log says when it is told and no call has come in between.
        self.waited = waited
        #: Names it in the log; 0 while that does not have it.
        self.number = 0

    def record(self, op: Op) -> bytes:
        """Return what the log says of it by its number."""
        context, _, what, handle = wire.CallStream(self.waited).read()[1]
        return wire.pack_record(op, context, self.number, what, handle)


class Ends:
    """What stands in front of the next call."""

    __slots__ = ("_asked", "_number", "_records", "_told", "some")

    def __init__(self) -> None:
        #: Whether there is anything.
        self.some = False
        self._asked: dict[End, None] = {}
        self._told: dict[bytes, None] = {}
        self._number = 0
        self._records: dict[tuple[Op | int | bytes, ...], bytes] = {}

    def ask(self, op: Op, handles: Sequence[int], bind: bytes) -> End | None:
        """Note that a program asks for an end.

        Parameters
        ----------
        op : Op
            Its query, or the copy that it waits for; None is returned if that tells nothing.
        handles : sequence of int
            The stream or events that it is about.
        bind : bytes
            The caller's packed BIND.
        """
        waited = self._records.get((op, *handles, bind))
        if waited is None:
            waited = self._pack(op, handles, bind)
        if not waited:
            return None
        end = End(waited)
        if op is not Op.EVENT_ELAPSED:  # of two events, and whoever asks does nothing meanwhile
            self._asked[end] = None
            self.some = True
        return end

    def tell(self, end: End) -> None:
        """Note that the program is about to hear of an end."""
        if end in self._asked:
            del self._asked[end]
            end.number = 0  # no call has come in between
        self._told[end.record(Op.WAITED) if end.number else end.waited] = None
        self.some = True

    def forget(self, end: End) -> None:
        """Note that an answer told of no end: programs may ask very often until one does."""
        self._asked.pop(end, None)

    def before(self, record: bytes) -> bytes:
        """Return a call's record behind what was told and asked before it."""
        if not self._asked:
            return b"".join((*self._told, record))
        for end in self._asked:
            if not end.number:
                self._number += 1
                end.number = self._number
        marks = [end.record(Op.MARKED) for end in self._asked]
        return b"".join((*self._told, *marks, record))

    def clear(self) -> None:
        """Note that this is logged."""
        self._asked.clear()
        self._told.clear()
        self.some = False

    def _pack(self, op: Op, handles: Sequence[int], bind: bytes) -> bytes:
        what = _WHAT.get(op)
        if len(self._records) >= _MANY:
            self._records.clear()
        record = b""
        if what is not None:
            context = wire.CallStream(bind).read()[1][1]
            each = [wire.pack_record(Op.WAITED, context, 0, what, h) for h in handles or (0,)]
            record = b"".join(each)
        self._records[op, *handles, bind] = record
        return record
