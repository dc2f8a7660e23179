"""The worker's end of a session, without any I/O.

`HostSession` decides who may speak (fence and attachment), which calls are next, which
are repeats, which replies must still be kept, and what an epoch has to hold. The
executor does the calls; the worker's loop moves the frames.
"""

from __future__ import annotations

import enum
import hmac
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from outlast.errors import AuthenticationFailed, ProtocolError, SessionFenced
from outlast.session import inventory, wire
from outlast.session.ids import digest
from outlast.session.schema import INLINE_LIMIT, Kind, ReplyKind
from outlast.session.wire import Message, Reply

#: Replies kept for a client that does not acknowledge; above it no call is started.
REPLY_CACHE_LIMIT = 64 << 20
_ANSWER = ReplyKind.ANSWER


class State(enum.Enum):
    """What a worker may do with its session."""

    #: Calls that were applied before a crash are being applied again.
    REPLAYING = "replaying"
    RUNNING = "running"
    #: Takes no more calls; its epoch is being saved.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Cut:
    """What an epoch holds besides device state: where it is and what is still owed."""

    seq: int
    #: Unacknowledged outcomes and late failures.
    replies: tuple[Reply, ...]


class HostSession:
    """State machine of a session in its worker."""

    def __init__(self) -> None:
        self.state = State.RUNNING
        self.generation = 0
        #: Connection that showed the secret (opaque to this class), None while unattached.
        self.peer: bytes | None = None
        self.applied = 0
        #: Seqs of the verified epochs that this client can be served from, oldest first.
        self.epochs: list[int] = []
        #: An epoch's seq if this worker was restored and no client has been told yet.
        self.restored_from = 0
        #: The device is being read as it stands: calls wait.
        self.still = False
        #: The attached client has sent nothing yet and must be told what there is.
        self.newcomer = False
        self._secret = b""
        self._replay_to = 0
        self._base = 0
        self._outcomes: dict[int, Reply] = {}
        self._order: list[int] = []
        self._deferred: dict[int, Reply] = {}
        self._cached = 0
        self._outbox: deque[Reply] = deque()
        self._told_applied = 0

    # -- who may speak -------------------------------------------------------------------------

    def fence(self, generation: int, secret_digest: bytes) -> None:
        """Accept only ``generation`` from now on, once it shows its secret.

        Raises
        ------
        SessionFenced
            A generation as high or higher is already known.
        """
        if generation <= self.generation:
            raise SessionFenced(
                f"generation {generation} is not above {self.generation}", generation=generation
            )
        self.generation = generation
        self._secret = secret_digest
        self.peer = None
        self._outbox.clear()

    def attach(self, peer: bytes, message: Message) -> None:
        """Bind the connection ``peer`` to the current generation.

        Raises
        ------
        SessionFenced
            The generation is not the current one, or is already attached elsewhere.
        AuthenticationFailed
            The secret is wrong.
        """
        if message["generation"] != self.generation or self.peer is not None:
            raise SessionFenced(
                f"generation {message['generation']} may not attach here; "
                f"the current one is {self.generation}"
            )
        if not hmac.compare_digest(digest(message["secret"]), self._secret):
            raise AuthenticationFailed("the attachment's secret is wrong")
        self._secret = b""  # it serves once
        self.peer = peer
        self._acknowledge(message)
        self._replay_to = message["replay_to"]
        self.newcomer = self._replay_to == 0 and self.applied > 0
        if self.state is State.RUNNING and self.applied < self._replay_to:
            self.state = State.REPLAYING
        self._outbox.clear()
        self._outbox.extend(self._owed())

    def attached(self, holds: dict[str, Any]) -> list[bytes]:
        """Return the frames of the ATTACHED that answers an attach."""
        restored, self.restored_from = self.restored_from, 0
        self._told_applied = self.applied
        field, frames = inventory.pack(holds)
        header = wire.pack_message(
            Kind.ATTACHED,
            generation=self.generation,
            applied=self.applied,
            recoverable=self.recoverable,
            restored_from=restored,
            inventory=field,
        )
        return [header, *frames]

    def lost(self) -> None:
        """Note that the attached connection is gone; its replies stay owed."""
        self.peer = None
        self._outbox.clear()

    def check(self, peer: bytes, generation: int) -> None:
        """Refuse a message that is not from the attached connection.

        Raises
        ------
        SessionFenced
            It is from another connection or another generation.
        """
        if peer != self.peer or generation != self.generation:
            raise SessionFenced(
                f"generation {generation} is not attached here; the current one is "
                f"{self.generation}: say HELLO again"
            )

    # -- calls ---------------------------------------------------------------------------------

    def admit(self, first_seq: int, count: int) -> int:
        """Return how many leading calls of a batch are repeats to skip.

        Raises
        ------
        ProtocolError
            Calls between the last applied one and this batch are missing.
        """
        if not count:
            return 0
        expected = self.applied + 1
        if first_seq > expected:
            raise ProtocolError(f"a gap: call {expected} is next, the batch begins at {first_seq}")
        return min(count, expected - first_seq)

    def advance(self, seq: int) -> None:
        """Note that calls up to ``seq`` have been issued to the device."""
        self.applied = seq
        if self.state is State.REPLAYING and seq >= self._replay_to:
            self.state = State.RUNNING

    # -- replies -------------------------------------------------------------------------------

    def reply(self, reply: Reply) -> None:
        """Owe the client a reply; queries' answers are not kept (they are asked again)."""
        if reply.kind != _ANSWER:
            self._keep(reply)
        if self.peer is not None:
            self._outbox.append(reply)

    def _keep(self, reply: Reply) -> None:
        if reply.kind == ReplyKind.OUTCOME:
            self._outcomes[reply.number] = reply
            heappush(self._order, reply.number)
            self._cached += len(reply.data)
        else:
            self._deferred[reply.number] = reply

    def crowded(self, coming: int) -> bool:
        """Return whether no call may be started: too many reply bytes are unacknowledged, say.

        Parameters
        ----------
        coming : int
            Bytes of replies that calls under way will give.
        """
        return self.still or self._cached + coming > REPLY_CACHE_LIMIT

    @property
    def cached_bytes(self) -> int:
        """Bytes of replies kept for the client."""
        return self._cached

    def acknowledge(self, acked: int) -> None:
        """Drop the outcomes up to ``acked``: they have landed."""
        while self._order and self._order[0] <= acked:
            self._drop(heappop(self._order))

    def acknowledge_message(self, message: Message) -> None:
        """Take in an ACK."""
        self._acknowledge(message)

    def has_news(self, idle: bool) -> bool:
        """Return whether there is something to say: replies, or if ``idle`` the applied seq."""
        if self.peer is None:
            return False
        return bool(self._outbox) or (idle and self.applied > self._told_applied)

    def take_replies(self, idle: bool) -> list[Any] | None:
        """Return the next REPLIES message as frames, None if there is nothing to say.

        Parameters
        ----------
        idle : bool
            Nothing else is about to happen: tell the applied seq even without replies.
        """
        if not self.has_news(idle):
            return None
        records: list[bytes] = []
        payloads: list[Any] = []
        size = 0
        outbox = self._outbox
        while outbox and len(records) < 256 and size < 1 << 20:
            record, payload = wire.pack_reply(outbox.popleft(), INLINE_LIMIT)
            records.append(record)
            if payload is not None:
                payloads.append(payload)
                size += len(payload)
        self._told_applied = self.applied
        return [wire.pack_replies(self.generation, self.applied, b"".join(records)), *payloads]

    @property
    def untold(self) -> int:
        """Calls applied that the client has not been told of."""
        return self.applied - self._told_applied

    # -- epochs --------------------------------------------------------------------------------

    @property
    def recoverable(self) -> int:
        """Seq of the older of the two newest verified epochs: the log may drop up to it."""
        return self.epochs[-2] if len(self.epochs) > 1 else self._base

    def cut(self) -> Cut:
        """Return what an epoch at the current place must hold."""
        return Cut(self.applied, tuple(self._owed()))

    def committed(self, seq: int) -> None:
        """Note that the epoch at ``seq`` is verified and its database row is written."""
        if not self.epochs or seq > self.epochs[-1]:
            self.epochs = [*self.epochs[-1:], seq]

    def restored(self, seq: int, older: Sequence[int], stored: bool = True) -> None:
        """Go on from a restored epoch, whose replies are owed again already.

        Parameters
        ----------
        seq
            Its last call.
        older
            Those of the stored epochs before it, oldest first.
        stored
            It can be restored again if this process dies.
        """
        self.applied = seq
        self.restored_from = seq
        self.epochs = [*older[-1:], seq] if stored else [*older[-2:]]
        self._told_applied = seq

    def adopted(self) -> None:
        """Begin anew for another client at the epoch just committed: nothing is owed."""
        self._base = self.applied
        self.epochs = [self.applied]
        self._outcomes.clear()
        self._order.clear()
        self._deferred.clear()
        self._cached = 0
        self._outbox.clear()
        self._replay_to = 0
        if self.state is State.REPLAYING:
            self.state = State.RUNNING

    # -- inside --------------------------------------------------------------------------------

    def _owed(self) -> list[Reply]:
        replies = [*self._outcomes.values(), *self._deferred.values()]
        return sorted(replies, key=lambda r: (r.number, r.kind))

    def _acknowledge(self, message: Message) -> None:
        self.acknowledge(message["acked"])
        for first, last in message["ranges"]:
            for seq in [s for s in self._outcomes if first <= s <= last]:
                self._drop(seq)
        for seq in message["deferred"]:
            self._deferred.pop(seq, None)

    def _drop(self, seq: int) -> None:
        reply = self._outcomes.pop(seq, None)
        if reply is not None:
            self._cached -= len(reply.data)
