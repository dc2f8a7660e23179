"""HELLO to WELCOME: deciding, claiming, starting or restoring a worker, fencing.

One flow per session at a time. The order makes it safe: the row is durable before the
worker is told, the worker has acknowledged the fence before the client hears of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast import __version__
from outlast.errors import (
    LeaseLost,
    OutlastError,
    ProtocolError,
    RestoreFailed,
    ServerDraining,
    SessionBusy,
    SessionLost,
    SessionNotFound,
    TokenSuperseded,
    VersionMismatch,
)
from outlast.server.channel import Json
from outlast.server.flow import Flow, Step, run
from outlast.server.sessions import SessionEntry
from outlast.server.start_message import start_message
from outlast.server.workers import WorkerProcess
from outlast.session import wire
from outlast.session.ids import check_session_id, digest, new_secret
from outlast.session.registry import Decision, Hello, Known, decide
from outlast.session.rows import EpochRow, SessionState
from outlast.session.schema import (
    DEFAULT_WINDOW,
    PROTOCOL_VERSION,
    STREAM_FORMAT,
    Intent,
    Kind,
    Wish,
)
from outlast.session.wire import Message
from outlast.values import is_loopback

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: Workers that try to go on with what the keeper has: in a new process it may succeed.
KEPT_TRIES = 2


class Attachments:
    """Sessions of this server process and the flows that attach clients to them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._table = gateway.sessions

    # -- for the gateway -----------------------------------------------------------------------

    def hello(self, peer: bytes, message: Message) -> None:
        """Begin to answer a HELLO."""
        try:
            hello = Hello(
                check_session_id(message["session"]),
                message["incarnation"],
                message["token"],
                Intent(message["intent"]),
            )
        except (OutlastError, ValueError) as error:
            self._gateway.refuse(peer, ProtocolError(f"a HELLO that cannot be: {error}"))
            return
        entry = self._table.entry(hello.session_id)
        if entry.busy:
            if entry.incarnation == hello.incarnation:
                entry.peer = peer  # it asks again; its answer is being prepared
            else:
                busy = SessionBusy(f"session {hello.session_id!r} is being attached")
                self._gateway.refuse(peer, busy, retry_after=0.2)
            return
        entry.busy, entry.peer, entry.incarnation = True, peer, hello.incarnation

        def done(_: Any, error: OutlastError | None) -> None:
            entry.busy = False
            if error is not None:
                log.warning(
                    "hello refused: %s",
                    error,
                    extra={"action": "hello_refused", "session": entry.session_id},
                )
                refusal = self._refusal(error)
                retry_after = float(getattr(refusal, "retry_after", 0.0) or 0.0)
                self._gateway.refuse(entry.peer, refusal, retry_after)
            self._table.tidy(entry)

        run(self._attach(entry, hello, message), done)

    def end_orphan(self, session_id: str) -> None:
        """End a session that has no worker and for which nobody has come."""
        self._take_up(session_id, self._end_orphan, "an abandoned session stays")

    def clear(self, session_id: str) -> None:
        """Remove what is stored of a session that has ended and has no worker."""
        self._take_up(session_id, self._clear, "checkpoints of an ended session stay")

    def _take_up(
        self, session_id: str, begin: Callable[[SessionEntry], Flow], failure: str
    ) -> None:
        """Begin what no client has asked for, unless somebody is at the session."""
        entry = self._table.entry(session_id)
        if entry.busy or entry.worker is not None:
            return
        entry.busy, entry.peer, entry.incarnation = True, b"", b""

        def done(_: Any, error: OutlastError | None) -> None:
            entry.busy = False
            if error is not None:
                log.warning(
                    "%s: %s", failure, error, extra={"action": "stays", "session": session_id}
                )
            self._table.tidy(entry)

        run(begin(entry), done)

    def version_error(self, spoken: str, build: str = "unknown") -> VersionMismatch:
        """Return the refusal of a client that speaks another version."""
        return VersionMismatch(
            f"the client (build {build}) speaks {spoken}, this server (build {__version__}) "
            f"protocol {PROTOCOL_VERSION} with call streams of format {STREAM_FORMAT}: install "
            "the same release on both sides"
        )

    def draining_error(self) -> ServerDraining:
        """Return the refusal of whoever comes while the server shuts down."""
        return ServerDraining("the server is shutting down", retry_after=0.2)

    def _refusal(self, error: OutlastError) -> OutlastError:
        """Return what a client is told of the error that ended its HELLO."""
        if self._gateway.draining and error.retryable:
            return self.draining_error()
        if isinstance(error, LeaseLost | TokenSuperseded):
            # They have no code on the wire; who holds the session shows when it is tried again.
            return RestoreFailed(str(error))
        return error

    def _end_orphan(self, entry: SessionEntry) -> Flow:
        """Claim a session and end it; a worker without its state removes its epochs."""
        server_id = self._gateway.server_id
        entry.row = yield self._db(lambda store: store.claim(entry.session_id, server_id))
        self._gateway.kept.forget(entry.session_id, entry.token)
        epochs = yield self._db(lambda store: store.epochs(entry.session_id, unusable=True))
        if epochs:
            yield from self._start_from(entry, None, [])
        self._table.end_abandoned(entry)

    def _clear(self, entry: SessionEntry) -> Flow:
        entry.row = yield self._db(lambda store: store.session(entry.session_id))
        if entry.row is not None and entry.row.state is SessionState.ENDED:
            yield from self._start_from(entry, None, [])
            self._table.end(entry)

    # -- the flow of a HELLO -------------------------------------------------------------------

    def _attach(self, entry: SessionEntry, hello: Hello, message: Message) -> Flow:
        decision = yield from self._decide(entry, hello)
        if decision is Decision.CREATE:
            entry.row = yield self._db(
                lambda store: store.create_session(
                    hello.session_id,
                    hello.incarnation,
                    digest(hello.token),
                    self._gateway.server_id,
                )
            )
            self._table.close_worker(entry, forget=True)
        elif decision is Decision.RESUME and message["wishes"] & Wish.FRESH:
            yield from self._make_way(entry)
        if entry.worker is None:
            yield from self._start(entry, message)
        worker = entry.worker
        assert worker is not None
        if decision is Decision.ADOPT:
            worker = yield from self._prepare_adoption(entry, worker, message)
            entry.row = yield self._db(
                lambda store: store.adopt(hello.session_id, entry.token, hello.incarnation)
            )
        else:
            entry.row = yield self._db(
                lambda store: store.attach(hello.session_id, entry.token, hello.incarnation)
            )
        adopter = hello.incarnation.hex() if decision is Decision.ADOPT else ""
        yield from self._welcome(entry, worker, bool(message["wishes"] & Wish.RELAY), adopter)

    def _make_way(self, entry: SessionEntry) -> Flow:
        """End a session's worker for a client that wants a fresh one, if it needs one.

        It may have one already, whose WELCOME was lost.
        """
        if entry.worker is None:
            return
        condition = yield entry.worker.request("condition")
        self._require_open()
        if condition["poisoned"]:
            log.warning(
                "error %d has ended the session's contexts: it goes on in a new worker",
                condition["poisoned"],
                extra={"action": "fault_recovery", "session": entry.session_id},
            )
            self._table.close_worker(entry)

    def _prepare_adoption(
        self, entry: SessionEntry, worker: WorkerProcess, message: Message
    ) -> Flow:
        """Have an epoch from which the adopter's log begins; return the worker that has it.

        Raises
        ------
        SessionBusy
            The client it belongs to lives.
        """
        probe = yield worker.request("probe")
        if probe["alive"]:
            raise SessionBusy(
                f"session {entry.session_id!r} has a live client: end that program, or choose "
                "another LUPINE_SESSION",
                retry_after=1.0,
            )
        prepared = yield worker.request("adopt")
        if not prepared["poisoned"]:
            return worker
        # The stored epoch lies before the error that poisoned the context.
        self._table.close_worker(entry)
        yield from self._start(entry, message)
        assert entry.worker is not None
        return entry.worker

    def _decide(self, entry: SessionEntry, hello: Hello) -> Flow:
        try:
            row = yield self._db(lambda store: store.session(hello.session_id))
        except SessionNotFound:
            row = None
        known = None
        if row is not None:
            known = Known(
                row.incarnation, row.resume_token_hash, row.state, row.failed_reason or ""
            )
        decision = decide(hello, known)
        if isinstance(decision, OutlastError):
            raise decision
        if entry.row is not None and (row is None or row.token != entry.row.token):
            self._table.close_worker(entry, forget=True)  # another server has had it since
        entry.row = row
        return decision

    def _start(self, entry: SessionEntry, message: Message) -> Flow:
        """Claim the session under a new token and start its worker from the best epoch.

        Raises
        ------
        SessionLost
            No epoch can be continued from; all are kept.
        """
        server_id = self._gateway.server_id
        epochs = yield self._db(lambda store: store.epochs(entry.session_id))
        # An adopter has no log yet, also when it asks again because its WELCOME was lost.
        adopting = message["intent"] == Intent.ADOPT
        head = 0 if adopting else int(message["log_head"])
        # From the empty session on, only a log that begins with the first call can replay.
        needs_epoch = bool(epochs) if adopting else head > 1
        usable = [epoch for epoch in epochs if epoch.seq + 1 >= head]
        skipped: list[str] = []
        if (yield from self._start_kept(entry, head, epochs)):
            return
        if adopting and not epochs:
            yield from self._require_empty(entry)
        while True:
            if needs_epoch and not usable:
                raise SessionLost(
                    f"session {entry.session_id!r}: no stored epoch can be continued from"
                    + ("" if adopting else f", the client's log begins at call {head}")
                    + "".join(f"; {reason}" for reason in skipped),
                    epoch=epochs[0].seq if epochs else 0,
                    head=head,
                )
            chosen = usable[0] if usable else None
            older = [epoch.seq for epoch in usable[1:2]]
            seq = chosen.seq if chosen else 0
            # Each try has a token of its own, which cuts the journal back to where it begins.
            entry.row = yield self._db(
                lambda store, seq=seq: store.claim(entry.session_id, server_id, seq=seq)
            )
            try:
                yield from self._start_from(entry, _stored(chosen), older)
                return
            except OutlastError as error:
                if chosen is None or not getattr(error, "corrupt", False):
                    raise
                log.error(
                    "epoch %d cannot be used: %s; falling back to the one before",
                    chosen.seq,
                    error,
                    extra={"action": "epoch_corrupt", "session": entry.session_id},
                )
                skipped.append(f"epoch {chosen.seq} is corrupt")
                usable = usable[1:]

    def _require_empty(self, entry: SessionEntry) -> Flow:
        """Refuse to pass an empty session off as one whose objects are gone.

        Raises
        ------
        SessionLost
            The journal knows of objects, and no epoch holds them.
        """
        session_id = entry.session_id
        rows = yield self._db(lambda store: [*store.handles(session_id)])
        if rows:
            raise SessionLost(
                f"session {session_id!r} had objects, its worker died before its first "
                "checkpoint, and the log of its program went with that program; "
                f"'outlast journal end {session_id}' frees the name",
                epoch=0,
            )

    def _start_kept(self, entry: SessionEntry, head: int, epochs: list[EpochRow]) -> Flow:
        """Start a worker from what the last one left with the keeper; return whether it did."""
        assert entry.row is not None
        kept = self._gateway.kept
        held = kept.find(entry.session_id)
        if held is None:
            return False
        server_id, seq = self._gateway.server_id, int(held["seq"])
        # Sealed by the last worker there was, and as far as the client's log reaches back.
        if held["sealed"] and held["token"] == entry.row.token and seq + 1 >= head:
            older = [epoch.seq for epoch in epochs[1::-1]]
            for _ in range(KEPT_TRIES):
                entry.row = yield self._db(
                    lambda store: store.claim(entry.session_id, server_id, seq=seq)
                )
                try:
                    yield from self._start_from(entry, {"seq": seq, "kept": True}, older)
                    return True
                except OutlastError as error:
                    log.error(
                        "what the keeper has cannot be used: %s",
                        error,
                        extra={"action": "kept_unusable", "session": entry.session_id},
                    )
        # It would only take the room that the stored epoch needs.
        kept.forget(entry.session_id, entry.token)
        return False

    def _start_from(self, entry: SessionEntry, epoch: Json | None, older: list[int]) -> Flow:
        assert entry.row is not None
        self._require_open()
        worker = self._table.give_worker(entry)
        start = start_message(self._gateway, entry.row, epoch, older)
        try:
            yield worker.start(start)
        except OutlastError:
            self._table.close_worker(entry)
            raise

    def _welcome(
        self, entry: SessionEntry, worker: WorkerProcess, relay: bool, adopter: str
    ) -> Flow:
        assert entry.row is not None
        self._require_open()
        secret = new_secret()
        generation = entry.row.generation
        yield worker.request(
            "fence", generation=generation, secret=digest(secret).hex(), adopter=adopter
        )
        config = self._gateway.config
        # Workers listen at loopback alone, whatever the gateway does.
        relayed = relay or config.relay or not is_loopback(config.bind)
        welcome = wire.pack_message(
            Kind.WELCOME,
            generation=generation,
            window=DEFAULT_WINDOW,
            secret=secret,
            heartbeat=config.heartbeat,
            timeout=config.heartbeat_timeout,
            endpoints="" if relayed else " ".join(worker.endpoints),
            server=__version__,
            devices=worker.devices,
        )
        if relayed:
            self._gateway.relay.open(entry.peer, worker.endpoints[0])
        self._gateway.send(entry.peer, [welcome])
        log.info(
            "client attached",
            extra={
                "action": "attached",
                "session": entry.session_id,
                "generation": generation,
                "relay": relayed,
            },
        )

    def _require_open(self) -> None:
        """Refuse to go on with a HELLO that a shutdown has overtaken."""
        if self._gateway.draining:
            raise self.draining_error()

    def _db(self, work: Any) -> Step:
        return lambda resume: self._gateway.database.submit(work, resume)


def _stored(epoch: EpochRow | None) -> Json | None:
    """Return what a worker is told of a stored epoch."""
    if epoch is None:
        return None
    return {
        "seq": epoch.seq,
        "kept": False,
        "location": epoch.location,
        "digest": epoch.digest,
    }
