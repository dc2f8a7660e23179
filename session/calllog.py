"""The client's log: every state-changing call that no verified epoch makes superfluous.

It is the only truth of a session. Batches are kept as they were encoded, without their
header (a header is made at each send). Over its limit the log spills its oldest batches
to a file; at the hard limit the call fails typed. It never drops.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.errors import LogFull
from outlast.session.schema import Op
from outlast.session.wire import pack_record, split_stream

#: An epoch is asked for when the log has grown by this share of its limit.
EPOCH_SHARE = 0.4
#: Share of its limit that the log spills at once: so much is written while a call waits.
SPILL_SHARE = 1 / 8

#: Bytes of a call that travel in a frame of their own; the log keeps them alive.
Payload = bytes | memoryview


class Spill(Protocol):
    """Where batches go that memory has no room for (files; in tests a list)."""

    def write(self, parts: Sequence[Payload]) -> int:
        """Append the parts and return where they begin; `LogFull` if there is no room."""

    def read(self, position: int, sizes: list[int]) -> list[bytes]:
        """Return parts of the given sizes from ``position``."""

    def trim(self, position: int) -> None:
        """Forget what lies before ``position``."""

    def reset(self) -> None:
        """Forget everything: no batch is spilled any more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call, as the program saw it."""

    result: int  # CUresult value
    value: int = 0


class Batch:
    """Consecutive sequenced calls, encoded once, with the payload frames they name."""

    __slots__ = ("count", "first_seq", "parts", "position", "size", "sizes")

    def __init__(
        self, first_seq: int, count: int, stream: bytes, payloads: Sequence[Payload]
    ) -> None:
        self.first_seq = first_seq
        self.count = count
        #: Stream, then payloads; None while spilled.
        self.parts: list[Any] | None = [stream, *payloads]
        self.sizes = [len(stream), *map(len, payloads)]
        self.size = sum(self.sizes)
        self.position = 0

    @property
    def last_seq(self) -> int:
        """Seq of the last call."""
        return self.first_seq + self.count - 1


class CallLog:
    """Batches in order, from `head` on.

    Parameters
    ----------
    limit : int
        Bytes held in memory; above it the oldest batches spill.
    hard_limit : int
        Bytes in memory and in the spill file together.
    spill : Spill or None
        None: the hard limit is the limit.
    """

    def __init__(
        self, limit: int = 256 << 20, hard_limit: int = 4 << 30, spill: Spill | None = None
    ) -> None:
        self.limit = limit
        self.hard_limit = hard_limit if spill else limit
        self.batches: deque[Batch] = deque()
        self.outcomes: dict[int, Outcome] = {}
        self.bytes = 0
        self.memory = 0
        #: First seq that can still be sent.
        self.head = 1
        self._spill = spill
        self._asked_at = 0

    def check_room(self) -> None:
        """Refuse a call once the hard limit is reached.

        A call is admitted whenever the log is below its limit before it, so one call
        may overshoot.

        Raises
        ------
        LogFull
            No epoch has made room, or the batches over the limit cannot be spilled.
        """
        if not self.full:
            return
        self.ask_again()
        if self.bytes >= self.hard_limit:
            raise LogFull(
                f"the call log holds {self.bytes} bytes, its hard limit is {self.hard_limit}: "
                "no checkpoint has succeeded since; look at the server's log, or raise "
                "LUPINE_REPLAY_LIMIT and LUPINE_REPLAY_HARD_LIMIT",
                bytes=self.bytes,
            )
        if self._spill is not None:
            self._spill_oldest(self._spill)

    @property
    def full(self) -> bool:
        """Whether `check_room` has something to say."""
        return self.bytes >= self.hard_limit or self.memory > self.limit

    @property
    def last_seq(self) -> int:
        """Seq of the last call in it, or of the last one that it has dropped."""
        return self.batches[-1].last_seq if self.batches else self.head - 1

    def append(self, batch: Batch) -> None:
        """Add the next batch, spilling older ones if memory is over the limit.

        It never fails: the calls in it have been promised. What cannot be spilled stays in
        memory, and the next call is refused.
        """
        self.batches.append(batch)
        self.bytes += batch.size
        self.memory += batch.size
        if self.memory > self.limit and self._spill is not None:
            with contextlib.suppress(LogFull):
                self._spill_oldest(self._spill)

    def ask_again(self) -> None:
        """Forget that an epoch was asked for: nothing came of it."""
        self._asked_at = 0

    def wants_epoch(self) -> bool:
        """Return whether an epoch should be asked for, once per `EPOCH_SHARE` of growth."""
        if self.bytes - self._asked_at < self.limit * EPOCH_SHARE:
            return False
        self._asked_at = self.bytes
        return True

    def record(self, seq: int, outcome: Outcome) -> None:
        """Log the outcome of a call: replay imposes it."""
        if seq >= self.head:
            self.outcomes[seq] = outcome

    def truncate(self, recoverable: int) -> None:
        """Drop what every usable epoch already holds: calls up to ``recoverable``."""
        while self.batches and self.batches[0].last_seq <= recoverable:
            batch = self.batches.popleft()
            self.bytes -= batch.size
            if batch.parts is not None:
                self.memory -= batch.size
            self.head = batch.last_seq + 1
        self._asked_at = min(self._asked_at, self.bytes)
        for seq in [seq for seq in self.outcomes if seq < self.head]:
            del self.outcomes[seq]
        if self._spill is None:
            return
        if self.batches and self.batches[0].parts is None:  # the oldest are spilled first
            self._spill.trim(self.batches[0].position)
        else:
            self._spill.reset()

    def close(self) -> None:
        """Let go of everything, files too: nobody will send it any more."""
        self.batches.clear()
        self.bytes = self.memory = 0
        if self._spill is not None:
            self._spill.reset()

    def since(self, seq: int) -> Iterator[Batch]:
        """Yield the batches that hold ``seq`` and later calls, in order."""
        for batch in self.batches:
            if batch.last_seq >= seq:
                yield batch

    def parts(self, batch: Batch) -> list[Any]:
        """Return a batch's stream and payloads, read back if it was spilled."""
        if batch.parts is not None:
            return batch.parts
        assert self._spill is not None
        return self._spill.read(batch.position, batch.sizes)

    def replay_parts(self, batch: Batch) -> list[Any]:
        """Return a batch as replay sends it: each known outcome in front of its call."""
        stream, *payloads = self.parts(batch)
        seqs = range(batch.first_seq, batch.first_seq + batch.count)
        if not any(seq in self.outcomes for seq in seqs):
            return [stream, *payloads]
        out: list[bytes] = []
        seq = batch.first_seq
        for record, sequenced in split_stream(stream):
            if sequenced:
                known = self.outcomes.get(seq)
                if known is not None:
                    out.append(pack_record(Op.OUTCOME, seq, known.result, known.value))
                seq += 1
            out.append(record)
        return [b"".join(out), *payloads]

    def _spill_oldest(self, spill: Spill) -> None:
        enough = self.limit * (1 - SPILL_SHARE)
        for batch in self.batches:
            if self.memory <= enough:
                return
            if batch.parts is not None:
                batch.position = spill.write(batch.parts)
                batch.parts = None
                self.memory -= batch.size
