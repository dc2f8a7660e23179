"""The client's log: every state-changing call that no verified epoch makes superfluous.

It is the only truth of a session. Batches are kept as they were encoded, without their
header (a header is made at each send). Close to its limit the log begins to write its oldest
batches to a file; at the hard limit calls wait for an epoch, and fail typed if none comes. It
never drops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.errors import LogFull
from outlast.session.epochrequest import EpochRequest
from outlast.session.operations import Op
from outlast.session.wire import pack_record, split_stream

#: Share of its limit that the log keeps free for calls that come while it spills, and that it
#: spills at once.
SPILL_SHARE = 1 / 8
#: Bytes that are spilled in one piece.
SPILL_PIECE = 16 << 20

#: Bytes of a call that travel in a frame of their own; the log keeps them alive.
Payload = bytes | memoryview


class Writing(Protocol):
    """Parts on their way to where batches go that memory has no room for."""

    #: Where they begin, once they are there.
    position: int
    #: Why they are not there.
    error: LogFull | None

    @property
    def done(self) -> bool:
        """Whether they are there, or never will be."""


class Spill(Protocol):
    """Where batches go that memory has no room for (files; in tests a list)."""

    def write(self, parts: Sequence[Payload]) -> Writing:
        """Begin to append the parts. What fails takes with it what was begun behind it."""

    def wait(self, timeout: float) -> None:
        """Wait until something that was begun is done."""

    def read(self, position: int, sizes: list[int]) -> list[Any]:
        """Return parts of the given sizes from ``position``; `SessionLost` if they are gone."""

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

    __slots__ = ("count", "first_seq", "leaving", "parts", "position", "size", "sizes")

    def __init__(
        self, first_seq: int, count: int, stream: bytes, payloads: Sequence[Payload]
    ) -> None:
        self.first_seq = first_seq
        self.count = count
        #: Stream, then payloads; None while spilled.
        self.parts: list[Any] | None = [stream, *payloads]
        self.size = len(stream) + sum(map(len, payloads)) if payloads else len(stream)
        self.position = 0
        #: Of the parts, once it is being spilled.
        self.sizes: list[int] = []
        #: It is being spilled.
        self.leaving = False

    @property
    def last_seq(self) -> int:
        """Seq of the last call."""
        return self.first_seq + self.count - 1


class CallLog:
    """Batches in order, from `head` on.

    Parameters
    ----------
    limit : int
        Bytes held in memory; the oldest batches spill before it is reached.
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
        self.epochs = EpochRequest(limit)
        self._spill = spill
        self._high = 0
        self.tighten(limit)
        #: What is being spilled, in order, and the bytes of it that are still needed.
        self._writing: deque[tuple[list[Batch], Writing]] = deque()
        self._leaving = 0
        #: Why batches could not be spilled.
        self._error: LogFull | None = None

    def tighten(self, limit: int) -> None:
        """Hold no more than so many bytes in memory from now on."""
        self.limit = min(self.limit, limit)
        self._high = int(self.limit * (1 - SPILL_SHARE)) if self._spill else self.limit
        self.epochs.tighten(self.limit)

    def check_room(self) -> bool:
        """Return whether a call may be logged now; if not, to be asked again in a moment.

        A call is admitted whenever the log is below its limits before it, so one call may
        overshoot.

        Raises
        ------
        LogFull
            There is no room, and epochs, which would make some, fail.
        """
        if self.memory <= self._high and self.bytes < self.hard_limit:
            return True
        self._take_in()
        if self._error is None:
            self._spill_oldest()
        if not self.full:
            return True
        self.epochs.ask_again()
        if self.bytes >= self.hard_limit:
            error = LogFull(
                f"the call log holds {self.bytes} bytes, its hard limit is {self.hard_limit}; "
                "look at the server's log, or raise LUPINE_REPLAY_LIMIT and "
                "LUPINE_REPLAY_HARD_LIMIT",
                bytes=self.bytes,
            )
        elif self._error is not None:
            error, self._error = self._error, None  # next time it is tried again
        else:
            return False  # it is being spilled
        # An epoch that holds all of the log counts once there is another, behind one more call.
        if self.epochs.newest >= self.last_seq:
            return True
        if self.epochs.failure:
            text = f"{error}; the last checkpoint failed: {self.epochs.failure}"
            raise LogFull(text, **error.fields)
        return False

    @property
    def full(self) -> bool:
        """Whether `check_room` has to be asked."""
        return self.bytes >= self.hard_limit or self.memory > self.limit

    @property
    def spilling(self) -> bool:
        """Whether something is on its way to disk."""
        return bool(self._writing)

    def wait(self, timeout: float) -> None:
        """Wait until some of what is being spilled is on disk; any thread may."""
        if self._spill is not None:
            self._spill.wait(timeout)

    @property
    def last_seq(self) -> int:
        """Seq of the last call in it, or of the last one that it has dropped."""
        return self.batches[-1].last_seq if self.batches else self.head - 1

    def append(self, batch: Batch) -> None:
        """Add the next batch, and begin to spill older ones if memory gets short.

        It never fails: the calls in it have been promised. What cannot be spilled stays in
        memory, and the next call is refused.
        """
        self.batches.append(batch)
        self.bytes += batch.size
        self.memory += batch.size
        if self.memory > self._high:
            self._spill_oldest()

    def wants_epoch(self, applied: int) -> bool:
        """Return whether an epoch should be asked for now: it is taken to be asked for then.

        Parameters
        ----------
        applied : int
            Seq that the epoch will hold at least.
        """
        return self.epochs.due(self.bytes, applied)

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
            if batch.leaving:
                batch.leaving = False
                self._leaving -= batch.size
            self.head = batch.last_seq + 1
        self.epochs.shrunk(self.bytes)
        for seq in [seq for seq in self.outcomes if seq < self.head]:
            del self.outcomes[seq]
        if self._spill is None:
            return
        self._take_in()
        spilled = next((batch for batch in self.batches if batch.parts is None), None)
        if spilled is not None:
            self._spill.trim(spilled.position)
        elif not self._leaving:
            self._writing.clear()
            self._spill.reset()

    def close(self) -> None:
        """Let go of everything, files too: nobody will send it any more."""
        self.batches.clear()
        self._writing.clear()
        self.bytes = self.memory = self._leaving = 0
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

    def _spill_oldest(self) -> None:
        """Begin to spill the oldest batches until enough of what stays fits."""
        if self._spill is None:
            return
        self._take_in()
        staying = self.memory - self._leaving
        if staying <= self._high:
            return
        enough = self._high - self.limit * SPILL_SHARE
        piece: list[Batch] = []
        size = 0
        for batch in self.batches:
            if staying <= enough:
                break
            if batch.parts is None or batch.leaving:
                continue
            piece.append(batch)
            size += batch.size
            staying -= batch.size
            if size >= SPILL_PIECE:
                self._begin(self._spill, piece)
                piece, size = [], 0
        if piece:
            self._begin(self._spill, piece)
        self._take_in()

    def _begin(self, spill: Spill, piece: list[Batch]) -> None:
        parts = [part for batch in piece for part in batch.parts or ()]
        writing = spill.write(parts)
        for batch in piece:
            batch.sizes = [len(part) for part in batch.parts or ()]
            batch.leaving = True
            self._leaving += batch.size
        self._writing.append((piece, writing))

    def _take_in(self) -> None:
        """Let go of what has been spilled."""
        while self._writing and self._writing[0][1].done:
            piece, writing = self._writing[0]
            self._error = writing.error
            position = writing.position
            for batch in piece:
                if batch.leaving:  # else an epoch has made it superfluous
                    batch.leaving = False
                    self._leaving -= batch.size
                    if writing.error is None:
                        batch.parts, batch.position = None, position
                        self.memory -= batch.size
                position += batch.size
            self._writing.popleft()
        if not self._writing:
            self._leaving = 0  # also if Ctrl-C has come in between
