"""What a client waits for: answers of calls, and queries with their place in the order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from outlast.errors import OutlastError, ProtocolError
from outlast.session.calllog import Batch
from outlast.session.ends import End
from outlast.session.operations import Op
from outlast.session.wire import Reply


class Pending:
    """A call or query whose answer the program waits for."""

    __slots__ = ("done", "end", "error", "number", "op", "out", "reply")

    def __init__(
        self, op: Op, number: int, out: memoryview | None = None, end: End | None = None
    ) -> None:
        self.op = op
        self.number = number
        #: Where the bytes of a device-to-host copy land.
        self.out = out
        #: What it tells the end of.
        self.end = end
        self.done = False
        self.reply: Reply | None = None
        #: Why no answer will come.
        self.error: OutlastError | None = None

    def settle(self, reply: Reply) -> None:
        """Take the answer; bytes that have a place to land go there."""
        out = self.out
        if out is not None and reply.result == 0:
            if len(reply.data) == len(out):
                out[:] = reply.data
            else:
                self.error = ProtocolError(
                    f"a copy of {len(out)} bytes was answered with {len(reply.data)}"
                )
            reply = Reply(reply.kind, reply.number, reply.result, reply.value)
        elif not isinstance(reply.data, bytes):
            reply = Reply(reply.kind, reply.number, reply.result, reply.value, bytes(reply.data))
        self.reply = reply
        self.out = None
        self.done = True

    def fail(self, error: OutlastError) -> None:
        """Note that no answer will come."""
        self.error = error
        self.out = None
        self.done = True


class Query:
    """A query on its way: where in the order it stands and its records, BIND included."""

    __slots__ = ("after_seq", "pending", "records")

    def __init__(self, after_seq: int, records: bytes, pending: Pending) -> None:
        self.after_seq = after_seq
        self.records = records
        self.pending = pending


def in_order(batches: Iterable[Batch], queries: Iterable[Query]) -> Iterator[Batch | Query]:
    """Yield batches of calls with the queries, as they were asked, at their places between."""
    waiting = deque(queries)
    for batch in batches:
        while waiting and waiting[0].after_seq < batch.first_seq:
            yield waiting.popleft()
        yield batch
    yield from waiting


def gaps(pending: Iterable[int], end: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) between and behind ``pending`` seqs, up to ``end``.

    Every answered call in them has landed.
    """
    ranges = []
    previous = None
    for seq in pending:
        if previous is not None and seq > previous + 1:
            ranges.append((previous + 1, seq - 1))
        previous = seq
    if previous is not None and previous < end - 1:
        ranges.append((previous + 1, end - 1))
    return ranges
