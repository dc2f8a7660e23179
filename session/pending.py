"""What a client waits for: answers of calls, and queries with their place in the order."""

from __future__ import annotations

from outlast.errors import OutlastError
from outlast.session.schema import Op
from outlast.session.wire import Reply


class Pending:
    """A call or query whose answer the program waits for."""

    __slots__ = ("done", "error", "number", "op", "out", "reply")

    def __init__(self, op: Op, number: int, out: memoryview | None = None) -> None:
        self.op = op
        self.number = number
        #: Where the bytes of a device-to-host copy land.
        self.out = out
        self.done = False
        self.reply: Reply | None = None
        #: Why no answer will come.
        self.error: OutlastError | None = None


class Query:
    """A query on its way: where in the order it stands and its records, BIND included."""

    __slots__ = ("after_seq", "pending", "records")

    def __init__(self, after_seq: int, records: bytes, pending: Pending) -> None:
        self.after_seq = after_seq
        self.records = records
        self.pending = pending
