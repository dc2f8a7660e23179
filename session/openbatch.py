"""The calls of a client that are logged and not sealed yet."""

from __future__ import annotations

from outlast.session.calllog import Batch, Payload

#: BIND of the caller, record, and the payload frame that the record names.
Call = tuple[bytes, bytes, Payload | None]


class OpenBatch:
    """Calls from ``first_seq`` on.

    A call is added in one step, `calls.append`: Ctrl-C may end a program's thread between any
    two, and must find a call whole or not at all.
    """

    __slots__ = ("bytes", "calls", "first_seq")

    def __init__(self, first_seq: int, calls: list[Call] | None = None) -> None:
        self.first_seq = first_seq
        self.calls: list[Call] = calls or []
        #: About; what a call that was interrupted adds may be missing.
        self.bytes = 0

    @property
    def next_seq(self) -> int:
        """Seq of the next call."""
        return self.first_seq + len(self.calls)

    def sealed(self) -> Batch:
        """Return the calls as they are logged: a BIND wherever the caller changes."""
        records, payloads, last = [], [], b""
        for bind, record, payload in self.calls:
            if bind is not last and bind != last:
                records.append(bind)
            last = bind
            records.append(record)
            if payload is not None:
                payloads.append(payload)
        return Batch(self.first_seq, len(self.calls), b"".join(records), payloads)

    def after(self, seq: int) -> OpenBatch:
        """Return the calls behind ``seq`` alone."""
        return OpenBatch(seq + 1, self.calls[seq + 1 - self.first_seq :])
