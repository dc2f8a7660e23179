"""HELLO to WELCOME: deciding, claiming, starting or restoring a worker, fencing.

One flow per session at a time. The order makes it safe: the row is durable before the
worker is told, the worker has acknowledged the fence before the client hears of it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast import __version__
from outlast.errors import (
    OutlastError,
    ProtocolError,
    RestoreFailed,
    SessionBusy,
    SessionLost,
    SessionNotFound,
    VersionMismatch,
)
from outlast.server.channel import Json
from outlast.server.flow import Flow, Step, run
from outlast.server.workers import CrashCount, WorkerPool, WorkerProcess
from outlast.session import wire
from outlast.session.client import DEFAULT_WINDOW
from outlast.session.ids import check_session_id, digest, new_secret
from outlast.session.registry import Decision, Hello, Known, decide
from outlast.session.rows import (
    Allocated,
    Entry,
    EpochRow,
    Freed,
    HandleCreated,
    HandleDestroyed,
    SessionRow,
)
from outlast.session.schema import PROTOCOL_VERSION, Intent, Kind
from outlast.session.store import Store
from outlast.session.wire import Message

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: An attached client that has been silent this long may be replaced by an adopter.
SILENT = 1.0  # seconds


@dataclass(slots=True)
class SessionEntry:
    """A session as this server process knows it."""

    session_id: str
    row: SessionRow | None = None
    worker: WorkerProcess | None = None
    #: A HELLO's flow is under way; the latest peer of the same incarnation gets its answer.
    busy: bool = False
    peer: bytes = b""
    incarnation: bytes = b""
    crashes: CrashCount = field(default_factory=CrashCount)


class Attachments:
    """Sessions of this server process and the flows that attach clients to them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.pool = WorkerPool()
        self._entries: dict[str, SessionEntry] = {}

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
        entry = self._entries.setdefault(hello.session_id, SessionEntry(hello.session_id))
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
                retry_after = float(getattr(error, "retry_after", 0.0) or 0.0)
                self._gateway.refuse(entry.peer, error, retry_after)

        run(self._attach(entry, hello, message), done)

    def version_error(self, message: Message) -> VersionMismatch:
        """Return the refusal of a client that speaks another version."""
        return VersionMismatch(
            f"the client (build {message['build']}) speaks protocol {message['protocol']}, "
            f"this server (build {__version__}) speaks {PROTOCOL_VERSION}: install the same "
            "release on both sides"
        )

    def running(self) -> list[SessionEntry]:
        """Return the sessions that have a live worker."""
        return [e for e in self._entries.values() if e.worker is not None]

    def lease_renewed(self, valid_until: float) -> None:
        """Tell every worker how long it may act."""
        for entry in self.running():
            assert entry.worker is not None
            entry.worker.send("lease", until=valid_until)

    def stop_all(self) -> None:
        """End every worker."""
        for entry in self.running():
            assert entry.worker is not None
            entry.worker.send("stop")
        for entry in self.running():
            self._close_worker(entry)

    def close(self) -> None:
        """End all processes."""
        self.stop_all()
        self.pool.close()

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
            self._close_worker(entry)
        if entry.worker is None:
            yield from self._start(entry, message, decision)
        worker = entry.worker
        assert worker is not None
        if decision is Decision.ADOPT:
            probe = yield worker.request("probe")
            if probe["silent"] < SILENT:
                raise SessionBusy(
                    f"session {hello.session_id!r} has a live client", retry_after=SILENT
                )
            yield worker.request("adopt", incarnation=hello.incarnation.hex())
            entry.row = yield self._db(
                lambda store: store.adopt(hello.session_id, _token(entry), hello.incarnation)
            )
        else:
            entry.row = yield self._db(
                lambda store: store.attach(hello.session_id, _token(entry), hello.incarnation)
            )
        yield from self._welcome(entry, worker, bool(message["relay"]))

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
            self._close_worker(entry)  # another server has had it since
        entry.row = row
        return decision

    def _start(self, entry: SessionEntry, message: Message, decision: Decision) -> Flow:
        """Claim the session under a new token and start its worker from the best epoch."""
        server_id = self._gateway.server_id
        epochs = yield self._db(lambda store: store.epochs(entry.session_id))
        head = 0 if decision is Decision.ADOPT else int(message["log_head"])
        usable = [epoch for epoch in epochs if epoch.seq + 1 >= head]
        newest = usable[0].seq if usable else 0
        entry.row = yield self._db(
            lambda store: store.claim(entry.session_id, server_id, seq=newest)
        )
        skipped: list[str] = []
        while True:
            if not usable and head > 1:
                raise SessionLost(
                    f"session {entry.session_id!r}: no stored epoch reaches the client's log, "
                    f"which begins at call {head}" + "".join(f"; {s}" for s in skipped),
                    epoch=epochs[0].seq if epochs else 0,
                    head=head,
                )
            chosen = usable[0] if usable else None
            older = [epoch.seq for epoch in usable[1:2]]
            try:
                yield from self._start_from(entry, chosen, older)
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
                seq = usable[0].seq if usable else 0
                yield self._db(
                    lambda store, seq=seq: store.cut_back(entry.session_id, _token(entry), seq)
                )

    def _start_from(self, entry: SessionEntry, epoch: EpochRow | None, older: list[int]) -> Flow:
        assert entry.row is not None
        config = self._gateway.config
        worker = self.pool.take()
        entry.worker = worker
        worker.on_message = lambda message: self._on_worker(entry, message)
        self._gateway.watch(worker.channel.fileno(), lambda: self._on_channel(entry, worker))
        start: Json = {
            "session": entry.session_id,
            "incarnation": entry.row.incarnation.hex(),
            "token": entry.row.token,
            "lock": str(_lock_path(config.state_dir, entry.session_id)),
            "state_dir": str(config.state_dir),
            "device": config.device,
            "provider": config.provider,
            "log_level": config.log_level,
            "heartbeat": config.heartbeat,
            "timeout": config.heartbeat_timeout,
            "checkpoint_interval": config.checkpoint_interval,
            "epoch_deadline": config.epoch_deadline,
            "valid_until": self._gateway.valid_until,
            "older": older,
            "epoch": None,
        }
        if epoch is not None:
            start["epoch"] = {
                "seq": epoch.seq,
                "location": epoch.location,
                "digest": epoch.digest,
            }
        try:
            yield worker.start(start)
        except OutlastError:
            self._close_worker(entry)
            raise
        finally:
            self._gateway.after(0.5, self._warm)

    def _welcome(self, entry: SessionEntry, worker: WorkerProcess, relay: bool) -> Flow:
        assert entry.row is not None
        secret = new_secret()
        generation = entry.row.generation
        yield worker.request("fence", generation=generation, secret=digest(secret).hex())
        relayed = relay or self._gateway.config.relay
        config = self._gateway.config
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

    # -- workers -------------------------------------------------------------------------------

    def _warm(self) -> None:
        if not self._gateway.draining:
            self.pool.warm()

    def _on_channel(self, entry: SessionEntry, worker: WorkerProcess) -> None:
        # A message may have led to its end: then there is nothing to note.
        if not worker.receive() and entry.worker is worker:
            self._on_death(entry, worker)

    def _on_death(self, entry: SessionEntry, worker: WorkerProcess) -> None:
        self._gateway.unwatch(worker.channel.fileno())
        code = worker.reap()
        seq, op = worker.in_hand
        log.error(
            "worker died (code %d) with call %d %s",
            code,
            seq,
            op,
            extra={"action": "worker_died", "session": entry.session_id},
        )
        entry.worker = None
        worker.died()
        worker.close()
        if self._gateway.drain is not None:
            self._gateway.drain.gone(entry.session_id)
            return
        reason = entry.crashes.died(seq, op, code)
        if reason:
            self._park(entry, seq, reason)

    def _park(self, entry: SessionEntry, seq: int, reason: str) -> None:
        log.error(
            "session parked: %s",
            reason,
            extra={"action": "parked", "session": entry.session_id},
        )
        self._fire(lambda store: store.park(entry.session_id, _token(entry), seq, reason))

    def _close_worker(self, entry: SessionEntry) -> None:
        worker, entry.worker = entry.worker, None
        if worker is not None:
            self._gateway.unwatch(worker.channel.fileno())
            worker.close()
            worker.died()

    def _on_worker(self, entry: SessionEntry, message: Json) -> None:
        kind = message["kind"]
        if kind == "journal":
            entries = [_journal_entry(e) for e in message["entries"]]
            token = _token(entry)
            self._fire(lambda store: store.record(entry.session_id, token, entries))
        elif kind == "epoch":
            self._commit(entry, message)
        elif kind == "deleted":
            numbers, token = message["numbers"], _token(entry)
            self._fire(lambda store: store.forget_epochs(entry.session_id, token, numbers))
        elif kind == "drained":
            if self._gateway.drain is not None:
                self._gateway.drain.drained(entry.session_id, message)
        elif kind == "ended":
            self._end(entry)
        elif kind == "diverged":
            log.error("replay diverged: %s", message["message"], extra={"action": "diverged"})

    def _end(self, entry: SessionEntry) -> None:
        """End a session for good: its worker goes, its row says so."""
        token = _token(entry)
        self._close_worker(entry)
        self._entries.pop(entry.session_id, None)
        self._fire(lambda store: store.end_session(entry.session_id, token))

    # -- epochs --------------------------------------------------------------------------------

    def _commit(self, entry: SessionEntry, message: Json) -> None:
        """Commit an epoch in the journal, then tell its worker."""
        assert entry.row is not None
        token, worker = entry.row.token, entry.worker
        provider = self._gateway.config.provider

        def work(store: Store) -> int:
            number = store.session(entry.session_id).last_epoch + 1
            row = EpochRow(
                epoch=number,
                seq=message["seq"],
                token=token,
                provider=provider,
                location=message["location"],
                size=message["size"],
                digest=message["digest"],
                verified=True,
                created_at=message["created_at"],
            )
            store.commit_epoch(entry.session_id, token, row)
            return number

        def committed(number: int | None, error: OutlastError | None) -> None:
            if worker is None or entry.worker is not worker:
                return
            worker.send("committed", error=str(error) if error else "")
            if number is not None:
                entry.crashes.progressed(message["seq"])
                self._prune(entry, worker, token)

        self._gateway.database.submit(work, committed)

    def _prune(self, entry: SessionEntry, worker: WorkerProcess, token: int) -> None:
        """Mark old epochs; remove those whose mark is older than a lease."""
        ttl = self._gateway.config.lease_ttl

        def work(store: Store) -> list[list[Any]]:
            now = time.time()
            rows = store.epochs(entry.session_id, unusable=True)
            old = [row.epoch for row in rows]
            marked = store.mark_deleting(entry.session_id, token, old)
            return [
                [r.epoch, r.location]
                for r in marked
                if r.deleting_since and r.deleting_since + ttl < now
            ]

        def due(epochs: list[list[Any]] | None, error: OutlastError | None) -> None:
            if epochs and entry.worker is worker:
                worker.send("delete", epochs=epochs)

        self._gateway.database.submit(work, due)

    # -- small things --------------------------------------------------------------------------

    def _db(self, work: Any) -> Step:
        return lambda resume: self._gateway.database.submit(work, resume)

    def _fire(self, work: Any) -> None:
        """Run a transaction that nobody waits for."""

        def done(_: Any, error: OutlastError | None) -> None:
            if error is not None:
                log.error("journal: %s", error, extra={"action": "journal_failed"})

        self._gateway.database.submit(work, done, patience=float("inf"))


def _token(entry: SessionEntry) -> int:
    if entry.row is None or not entry.row.token:
        raise RestoreFailed(f"session {entry.session_id!r} is not claimed")
    return entry.row.token


def _lock_path(state_dir: Path, session_id: str) -> Path:
    return state_dir / "workers" / f"{digest(session_id).hex()[:32]}.lock"


def _journal_entry(entry: Json) -> Entry:
    what = entry["what"]
    if what == "handle":
        return HandleCreated(entry["kind"], entry["id"], 1, entry["recipe"], entry["seq"])
    if what == "destroyed":
        return HandleDestroyed(entry["kind"], entry["id"], entry["seq"])
    if what == "allocated":
        return Allocated(entry["address"], entry["size"], entry["device"], 0, entry["seq"])
    return Freed(entry["address"], entry["seq"])
