"""What goes to the worker, in messages none of which is too long for a frame.

A batch is small, but what was waited for in front of one of its calls may be thousands of
events, and after an attachment thousands of queries are asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from outlast.session.calllog import Batch
from outlast.session.operations import Op
from outlast.session.pending import Query
from outlast.session.schema import MAX_FRAME, RecordFlag
from outlast.session.wire import RECORD, split_stream

#: Bytes of a message's records, and of the queries behind a batch in the same message.
MOST, MOST_QUERIES = MAX_FRAME // 2, MAX_FRAME // 4


def cut(batch: Batch, parts: list[Any]) -> list[tuple[int, int, list[Any]]]:
    """Return first seq, number of calls and parts of each message that a batch goes in.

    Parameters
    ----------
    batch : Batch
        Whose calls it is.
    parts : list
        Its stream, with outcomes if it is replayed, and its payloads.
    """
    if len(parts[0]) <= MOST:
        return [(batch.first_seq, batch.count, parts)]
    return list(_cut(batch.first_seq, *parts))


def _cut(seq: int, stream: bytes, *payloads: Any) -> Iterator[tuple[int, int, list[Any]]]:
    frames = iter(payloads)
    begin = end = count = 0
    imposed = False
    part: list[Any] = []
    for record, sequenced in split_stream(stream):
        op, flags, _ = RECORD.unpack_from(record)
        # An outcome stays with its call.
        if end + len(record) - begin > MOST and begin < end and not imposed:
            yield seq, count, [stream[begin:end], *part]
            seq, begin, count, part = seq + count, end, 0, []
        imposed = op == Op.OUTCOME
        end += len(record)
        count += sequenced
        if flags & RecordFlag.PAYLOAD:
            part.append(next(frames))
    yield seq, count, [stream[begin:end], *part]


def take_queries(unsent: deque[Batch | Query]) -> bytes:
    """Take the queries that come next, as many as fit, and return their records."""
    records = b""
    while unsent and isinstance(item := unsent[0], Query) and len(records) < MOST_QUERIES:
        unsent.popleft()
        records += item.records
    return records
