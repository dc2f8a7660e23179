"""The client's end of a session, without any I/O: frames in, frames out.

`ClientSession` numbers calls, keeps them in the log, fills the window, lands replies and
knows what to send again after an attachment. The link (`outlast.shim.link`) gives it
sockets, threads and time; one lock of the link guards every method.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from outlast.errors import OutlastError, ProtocolError, SessionLost
from outlast.session import inventory, layout, wire
from outlast.session.calllog import Batch, CallLog, Outcome, Payload
from outlast.session.cuda import is_sticky
from outlast.session.deferred import LandedFailures
from outlast.session.ends import End, Ends
from outlast.session.openbatch import OpenBatch
from outlast.session.operations import Op
from outlast.session.pending import Pending, Query, gaps, in_order
from outlast.session.phase import Phase
from outlast.session.pieces import cut, take_queries
from outlast.session.recovery import FaultRecovery
from outlast.session.schema import (
    DEFAULT_WINDOW,
    HANDLE_FIRST,
    PROTOCOL_VERSION,
    STREAM_FORMAT,
    Intent,
    Kind,
    ReplyKind,
    Wish,
)
from outlast.session.wire import Message, Reply

#: A batch is sealed at this many calls or bytes, at a wait, or by the link's timer.
BATCH_CALLS = 64
BATCH_BYTES = 256 << 10
#: Batches sent and not yet applied: far below what ZeroMQ's queues take.
WINDOW_BATCHES = 256

_ATTACHED, _ANSWER = Phase.ATTACHED, ReplyKind.ANSWER


class ClientSession:
    """State machine of one client session.

    Parameters
    ----------
    session_id, incarnation, token, recovery
        See `outlast.session.ids`, `outlast.session.recovery`.
    log : CallLog
        Where state-changing calls are kept.
    intent : Intent
        What the first HELLO wants; RESUME from the first attachment on.
    """

    def __init__(
        self,
        session_id: str,
        incarnation: bytes,
        token: str,
        log: CallLog | None = None,
        intent: Intent = Intent.CREATE,
        recovery: FaultRecovery | None = None,
    ) -> None:
        self.session_id = session_id
        self.incarnation = incarnation
        self.token = token
        self.log = log or CallLog()
        self.intent = intent
        self.recovery = recovery or FaultRecovery()
        self.phase = Phase.DETACHED
        self.error: OutlastError | None = None
        self.generation = 0
        self.next_qid = 1
        #: Last seq the current worker has issued to its device.
        self.applied = 0
        self.recoverable = 0
        self.window = DEFAULT_WINDOW
        #: First handle free for this process.
        self.first_handle = HANDLE_FIRST
        #: What an adopted session already holds.
        self.inventory: dict[str, Any] = {}
        #: Sticky ``CUresult`` of a poisoned context, else 0.
        self.sticky = 0
        #: Late one-way failures not yet reported: (context, result).
        self.deferred: deque[tuple[int, int]] = deque()
        self.replayed_calls = 0
        self.attachments = 0

        #: Calls appended and not yet sealed.
        self.open = OpenBatch(1)
        self._pending: dict[int, Pending] = {}
        self._queries: dict[int, Query] = {}
        self._unsent: deque[Batch | Query] = deque()
        self._unsent_bytes = 0
        #: Batches up to this seq have been sent before: they go as replay.
        self._replay_until = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        self._landed_deferred = LandedFailures()
        self.ends = Ends()
        #: Seq of the epoch that was adopted: calls up to it are another client's.
        self._base = 0
        self._ack_due = False

    # -- the program's side --------------------------------------------------------------------

    def append(self, record: bytes, bind: bytes, payload: Payload | None = None) -> int:
        """Log a sequenced call and return its seq.

        Parameters
        ----------
        record : bytes
            The packed record.
        bind : bytes
            The packed BIND record of the calling thread and its context.
        payload : bytes or memoryview, optional
            The frame the record names. It must not change any more.
        """
        batch = self.open
        calls = batch.calls
        ends = self.ends
        if ends.some:
            record = ends.before(record)
        calls.append((bind, record, payload))
        if ends.some:
            ends.clear()  # should Ctrl-C come before this, they are only said again
        batch.bytes += len(record) if payload is None else len(record) + len(payload)
        count = len(calls)
        if count >= BATCH_CALLS or batch.bytes >= BATCH_BYTES:
            self.seal()
        return batch.first_seq + count - 1

    def expect(
        self, op: Op, seq: int, out: memoryview | None = None, end: End | None = None
    ) -> Pending:
        """Register that the program waits for the outcome of ``seq``, which may tell an end."""
        pending = self._pending[seq] = Pending(op, seq, out, end)
        return pending

    def ask(self, op: Op, args: Sequence[int], bind: bytes) -> Pending:
        """Queue a query behind everything appended so far."""
        self.seal()
        pending = Pending(op, self.next_qid, None, self.ends.ask(op, args, bind))
        self.next_qid += 1
        records = bind + wire.pack_record(op, pending.number, *args)
        query = Query(self.next_seq - 1, records, pending)
        self._queries[pending.number] = query
        self._unsent.append(query)
        return pending

    def seal(self) -> None:
        """Close the open batch: it can be sent from now on."""
        if not self.open.calls:
            return
        if self.log.last_seq < self.open.first_seq:
            self.log.append(self.open.sealed())
        # Otherwise Ctrl-C has come right here before. Then it may be sent twice, and done once.
        batch = self.log.batches[-1]
        self._unsent.append(batch)
        self._unsent_bytes += batch.size
        self.open = self.open.after(batch.last_seq)

    @property
    def next_seq(self) -> int:
        """Seq of the next call."""
        return self.open.next_seq

    @property
    def has_unsent(self) -> bool:
        """Whether sealed batches or queries wait to be sent."""
        return bool(self._unsent)

    @property
    def settled(self) -> bool:
        """Whether the worker has applied every call so far."""
        return not self._unsent and self.applied >= self.next_seq - 1

    @property
    def backlog(self) -> int:
        """Bytes that are logged and not applied: what a fast program must wait for."""
        return self._unsent_bytes + self._in_flight_bytes + self.open.bytes

    @property
    def progress(self) -> int:
        """Calls applied and queries answered; it only falls with a worker that dies."""
        return self.applied + self.next_qid - len(self._queries)

    def take_deferred(self, context: int) -> int:
        """Return (once) a late failure of ``context``, 0 if there is none."""
        for index, (owner, result) in enumerate(self.deferred):
            if owner in (0, context):
                del self.deferred[index]
                return result
        return 0

    # -- the link's side -----------------------------------------------------------------------

    def hello(self, build: str, relay: bool, cuda_version: int) -> bytes:
        """Return the HELLO of the next attachment."""
        return wire.pack_message(
            Kind.HELLO,
            protocol=PROTOCOL_VERSION,
            stream_format=STREAM_FORMAT,
            cuda_version=cuda_version,
            intent=int(self.intent),
            wishes=Wish.RELAY * relay | Wish.FRESH * self.recovery.wanted,
            generation=self.generation,
            log_head=self.log.head,
            next_seq=self.next_seq,
            incarnation=self.incarnation,
            token=self.token,
            session=self.session_id,
            build=build,
        )

    def attach(self, generation: int, secret: bytes) -> bytes:
        """Return the ATTACH for a granted generation.

        Raises
        ------
        ProtocolError
            A later attachment has been granted before.
        """
        if self.attachments and generation <= self.generation:
            raise ProtocolError(f"generation {generation} comes after {self.generation}")
        self.generation = generation
        acked, ranges = self._acks()
        return wire.pack_message(
            Kind.ATTACH,
            generation=generation,
            secret=secret,
            replay_to=self._replay_until,
            acked=acked,
            ranges=ranges,
            deferred=self._landed_deferred.tell_all(self.next_seq - 1),
        )

    def attached(self, message: Message) -> None:
        """Take over an attachment: decide what is sent again.

        Raises
        ------
        OutlastError
            The session was closed meanwhile.
        SessionLost
            The worker's state lies before everything the log still has.
        ProtocolError
            It answers another attachment, or its inventory cannot be read.
        """
        if message["generation"] != self.generation:
            raise ProtocolError(f"generation {message['generation']} was not asked for")
        if self.error is not None:
            raise self.error
        applied: int = message["applied"]
        if self.intent is Intent.ADOPT:
            self._start_after(applied, inventory.unpack(message))
        self.intent = Intent.RESUME
        if applied + 1 < self.log.head or applied >= self.next_seq:
            error = SessionLost(
                f"session {self.session_id!r} is at call {applied} on the server, the client's "
                f"log holds calls {self.log.head} to {self.next_seq - 1}: it cannot be continued",
                epoch=applied,
                head=self.log.head,
            )
            self.close(error)
            raise error
        self.phase = Phase.ATTACHED
        self.attachments += 1
        self.replayed_calls += max(0, self.applied - applied)
        self.recovery.attached(applied)
        self.applied = applied
        self._truncate(message["recoverable"])
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self.log.epochs.attached()
        self._requeue(applied)

    def detached(self) -> None:
        """Note that the data connection is gone: nothing is sent before the next one."""
        if self.phase is Phase.ATTACHED:
            self.phase = Phase.DETACHED

    def close(self, error: OutlastError) -> None:
        """End the session on this side: every waiting call fails with ``error``."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.error = error
        for pending in (*self._pending.values(), *(q.pending for q in self._queries.values())):
            pending.fail(error)
        self._pending.clear()
        self._queries.clear()
        self._unsent.clear()

    def take_outgoing(self) -> list[list[bytes]]:
        """Return the messages that may be sent now (the window limits batches, not queries)."""
        if self.phase is not _ATTACHED or not self._unsent:
            return []
        out: list[list[bytes]] = []
        acked = self._acked()
        while self._unsent:
            item = self._unsent[0]
            if isinstance(item, Query):
                queries = take_queries(self._unsent)
                out.append([wire.pack_calls(self.generation, self.next_seq, 0, acked, queries)])
                continue
            if self._in_flight_bytes and (
                self._in_flight_bytes + item.size > self.window
                or len(self._in_flight) >= WINDOW_BATCHES
            ):
                break
            self._unsent.popleft()
            self._unsent_bytes -= item.size
            out += self._batch_messages(item, acked)
        return out

    def receive(self, message: Message) -> None:
        """Take in one message of the current attachment.

        Raises
        ------
        ProtocolError
            The message does not follow the protocol; the link is to be dropped.
        """
        if message.fields.get("generation") != self.generation:
            return  # from a fenced worker or an older attachment: waste, not damage
        if message.kind is Kind.REPLIES:
            stream, *payloads = message.frames
            self.receive_replies(self.generation, message["applied"], stream, payloads)
        elif message.kind is Kind.EPOCH and self.log.epochs.taken(message["seq"], message["error"]):
            self.recovery.committed(message["seq"])
            self._truncate(message["recoverable"])

    def receive_replies(
        self, generation: int, applied: int, stream: Any, payloads: Sequence[Any], offset: int = 0
    ) -> None:
        """Take in a REPLIES message (hot path of `receive`)."""
        if generation != self.generation or self.recovery.wanted:
            return
        self._note_applied(applied)
        for reply in wire.iter_replies(stream, payloads, offset):
            if reply.result and self.recovery.claims(reply, self.next_seq - 1):
                return  # with all that this worker says behind it
            self._land(reply)

    def ack(self) -> bytes | None:
        """Return an ACK if something landed that no batch header has told, else None."""
        if not self._ack_due or self.phase is not _ATTACHED:
            return None
        acked, ranges = self._acks()
        deferred = self._landed_deferred.tell(self.next_seq - 1)
        self._ack_due = self._landed_deferred.untold
        return wire.pack_message(
            Kind.ACK, generation=self.generation, acked=acked, ranges=ranges, deferred=deferred
        )

    # -- inside --------------------------------------------------------------------------------

    def _acked(self) -> int:
        return next(iter(self._pending)) - 1 if self._pending else self.next_seq - 1

    def _acks(self) -> tuple[int, list[tuple[int, int]]]:
        return self._acked(), gaps(self._pending, self.next_seq)[: layout.MAX_LIST]

    def _batch_messages(self, batch: Batch, acked: int) -> list[list[bytes]]:
        again = batch.first_seq <= self._replay_until
        parts = self.log.replay_parts(batch) if again else self.log.parts(batch)
        self._replay_until = max(self._replay_until, batch.last_seq)
        self._in_flight.append((batch.last_seq, batch.size))
        self._in_flight_bytes += batch.size
        messages = [
            [wire.pack_calls(self.generation, seq, count, acked, stream), *payloads]
            for seq, count, (stream, *payloads) in cut(batch, parts)
        ]
        messages[-1][0] += take_queries(self._unsent)
        return messages

    def _note_applied(self, applied: int) -> None:
        if applied > self.applied:
            self.applied = applied
        flight = self._in_flight
        while flight and flight[0][0] <= applied:
            self._in_flight_bytes -= flight.popleft()[1]

    def _land(self, reply: Reply) -> None:
        # Forgotten last: what Ctrl-C interrupts comes again.
        if reply.kind is _ANSWER:
            query = self._queries.get(reply.number)
            if query is not None:
                self._settle(query.pending, reply, query.after_seq)
                del self._queries[reply.number]
        elif reply.kind == ReplyKind.OUTCOME:
            self._ack_due = True
            if reply.number not in self.log.outcomes:  # also if Ctrl-C came before `expect`
                self.log.record(reply.number, Outcome(reply.result, reply.value))
            pending = self._pending.get(reply.number)
            if pending is not None:
                self._settle(pending, reply, reply.number)
                del self._pending[reply.number]
        else:
            self._land_failure(reply)

    def _land_failure(self, reply: Reply) -> None:
        """Take in a late failure; a repeat was not acknowledged in time and is again."""
        self._ack_due = True
        if reply.number not in self._landed_deferred and reply.number > self._base:
            self.log.record(reply.number, Outcome(reply.result, reply.value))
            if is_sticky(reply.result):
                self.sticky = self.sticky or reply.result
            else:
                self.deferred.append((reply.value, reply.result))
        self._landed_deferred.add(reply.number)

    def _settle(self, pending: Pending, reply: Reply, seq: int) -> None:
        if not reply.result:
            self.recovery.went_well(pending.op, seq)
            if pending.end is not None:
                self.ends.tell(pending.end)
        elif is_sticky(reply.result):
            self.sticky = self.sticky or reply.result
        elif pending.end is not None:
            self.ends.forget(pending.end)
        pending.settle(reply)

    def _truncate(self, recoverable: int) -> None:
        if recoverable > self.recoverable:
            self.recoverable = recoverable
            self.log.truncate(recoverable)
            self._landed_deferred.forget(recoverable)

    def _requeue(self, applied: int) -> None:
        """Queue everything behind ``applied``, queries at their places in the order."""
        batches = list(self.log.since(applied + 1))
        self._unsent = deque(in_order(batches, self._queries.values()))
        self._unsent_bytes = sum(batch.size for batch in batches)

    def _start_after(self, applied: int, holds: dict[str, Any]) -> None:
        """Begin a fresh log at the epoch that adoption took."""
        self._base = self.recoverable = applied
        self.open = OpenBatch(applied + 1)
        self.log.head = applied + 1
        self.inventory = holds
        self.first_handle = max(HANDLE_FIRST, int(holds.get("next_handle", 0)))
