"""The sessions that this server process serves: their workers, journal entries and epochs."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.errors import (
    JournalUnavailable,
    OutlastError,
    RestoreFailed,
    SessionNotFound,
    TokenSuperseded,
)
from outlast.server.channel import Json
from outlast.server.departures import PATIENCE, Departures
from outlast.server.pool import WorkerPool
from outlast.server.workers import CrashCount, WorkerProcess, crashed
from outlast.session.rows import (
    Allocated,
    Entry,
    EpochRow,
    Freed,
    HandleCreated,
    HandleDestroyed,
    SessionRow,
)
from outlast.session.store import Store

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: A new spare worker starts this long after one was taken, not to slow that one down.
WARM_DELAY = 2.0  # seconds
#: How soon journal entries are offered again to a database that did not answer.
JOURNAL_RETRY = 1.0  # seconds
#: How long a worker may take to remove the epochs of a session that ended.
REMOVAL = 10.0  # seconds


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
    #: Journal entries that wait while earlier ones are written: the next group commit.
    unwritten: list[Entry] = field(default_factory=list)
    #: The worker's number of the newest entry that it has reported.
    reported: int = 0
    writing: bool = False
    #: Its program has ended it; the worker only removes its epochs yet.
    ended: bool = False

    @property
    def token(self) -> int:
        """Fencing token under which this process holds the session.

        Raises
        ------
        RestoreFailed
            It does not hold it.
        """
        if self.row is None or not self.row.token:
            raise RestoreFailed(f"session {self.session_id!r} is not claimed")
        return self.row.token


class SessionTable:
    """Live sessions by id, and what their workers report."""

    def __init__(self, gateway: Gateway, pool: WorkerPool) -> None:
        self._gateway = gateway
        self.pool = pool
        self.departures = Departures(gateway)
        self._entries: dict[str, SessionEntry] = {}

    def entry(self, session_id: str) -> SessionEntry:
        """Return the entry of a session, new if there is none."""
        return self._entries.setdefault(session_id, SessionEntry(session_id))

    def held(self, session_id: str) -> bool:
        """Return whether a session has a worker, or a HELLO is about to give it one."""
        entry = self._entries.get(session_id)
        return entry is not None and (entry.busy or entry.worker is not None)

    def tidy(self, entry: SessionEntry) -> None:
        """Forget a session of which this process holds nothing."""
        holds = entry.worker is not None or entry.busy or entry.writing or entry.crashes
        if not holds and self._entries.get(entry.session_id) is entry:
            del self._entries[entry.session_id]

    def running(self) -> list[SessionEntry]:
        """Return the sessions that have a live worker."""
        return [e for e in self._entries.values() if e.worker is not None]

    def lease_renewed(self, valid_until: float) -> None:
        """Tell every worker how long it may act."""
        for entry in self.running():
            assert entry.worker is not None
            entry.worker.send("lease", until=valid_until)

    def keep_only(self, tokens: dict[str, int]) -> None:
        """End the workers of sessions that others have taken over, or may have.

        Parameters
        ----------
        tokens : dict
            Fencing token of each session that is this server's still.
        """
        for entry in self.running():
            if entry.row is None or tokens.get(entry.session_id) != entry.row.token:
                log.error(
                    "superseded: the session has been taken over",
                    extra={"action": "superseded", "session": entry.session_id},
                )
                self.close_worker(entry, forget=True)
                self.tidy(entry)

    def stop_all(self, patience: float = PATIENCE) -> None:
        """End every worker and wait for them, ``patience`` seconds for all together."""
        for entry in self.running():
            assert entry.worker is not None
            entry.worker.send("stop")
        for entry in self.running():
            self.close_worker(entry)
        self.departures.wait(patience)

    def close(self) -> None:
        """End all processes."""
        self.stop_all()
        self.pool.close()

    def abandon(self) -> None:
        """Let go of all workers, for the next gateway to find."""
        for entry in self.running():
            assert entry.worker is not None
            entry.worker.abandon()
        self.pool.close()

    # -- workers -------------------------------------------------------------------------------

    def give_worker(self, entry: SessionEntry) -> WorkerProcess:
        """Give a session a worker process, which is yet to be started with it."""
        worker = self.pool.take()
        entry.ended = False
        entry.unwritten.clear()  # the claim has cut the rows back; replay brings them again
        self._employ(entry, worker)
        self._gateway.after(WARM_DELAY, self._warm)
        return worker

    def take_over(self, row: SessionRow, worker: WorkerProcess) -> None:
        """Go on with a session whose worker has outlived the gateway before."""
        entry = self.entry(row.id)
        entry.row = row
        self._employ(entry, worker)

    def _employ(self, entry: SessionEntry, worker: WorkerProcess) -> None:
        entry.worker = worker
        worker.on_message = lambda message: self._on_worker(entry, message)
        self._gateway.watch(worker.channel.fileno(), lambda: self._on_channel(entry, worker))

    def trim(self) -> None:
        """End the spare workers that were for sessions whose clients have not come back yet."""
        for process in self.pool.dismiss(left=1):
            self.departures.await_end(process)

    def _warm(self) -> None:
        if not self._gateway.draining:
            self.pool.warm()

    def _on_channel(self, entry: SessionEntry, worker: WorkerProcess) -> None:
        # A message may have led to its end: then there is nothing to note.
        if worker.receive() or entry.worker is not worker:
            return
        self._gateway.unwatch(worker.channel.fileno())
        self._gateway.relay.worker_gone(worker.endpoints)
        ready = worker.ready
        # It may take a while to give its memory back; only then there is an exit code.
        self.departures.await_end(
            worker.process, lambda code: self._on_death(entry, worker, code, ready)
        )

    def _on_death(self, entry: SessionEntry, worker: WorkerProcess, code: int, ready: bool) -> None:
        if entry.worker is not worker:
            return
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
        worker.dismiss()
        if self._gateway.drain is not None:
            self._gateway.drain.gone(entry.session_id)
            return
        if crashed(code):
            # What it left may be what it died of. One that was killed leaves what it had.
            self._gateway.kept.forget(entry.session_id, entry.token)
        reason = entry.crashes.died(seq, op, code, ready)
        if reason:
            self._park(entry, seq, reason)
        self.tidy(entry)

    def _diverged(self, entry: SessionEntry, seq: int, how: str) -> None:
        log.error(
            "replay diverged at call %d: %s",
            seq,
            how,
            extra={"action": "diverged", "session": entry.session_id},
        )
        reason = entry.crashes.diverged(seq, how)
        if reason:
            self._park(entry, seq, reason)

    def _park(self, entry: SessionEntry, seq: int, reason: str) -> None:
        log.error(
            "session parked: %s",
            reason,
            extra={"action": "parked", "session": entry.session_id},
        )
        token = entry.token
        entry.crashes = CrashCount()  # whoever lets it go on lets it be tried as often again
        self._fire(entry, lambda store: store.park(entry.session_id, token, seq, reason))

    def close_worker(self, entry: SessionEntry, forget: bool = False) -> None:
        """End a session's worker, if it has one; ``forget`` also what the keeper has from it."""
        worker, entry.worker = entry.worker, None
        if worker is not None:
            kept, token = self._gateway.kept, entry.row.token if forget and entry.row else 0
            self._gateway.unwatch(worker.channel.fileno())
            self._gateway.relay.worker_gone(worker.endpoints)
            # Not before its end: until then it may leave something there.
            self.departures.await_end(
                worker.dismiss(), lambda _: kept.forget(entry.session_id, token)
            )
            worker.died()
            if self._gateway.drain is not None:
                self._gateway.drain.closed(entry.session_id)

    def _on_worker(self, entry: SessionEntry, message: Json) -> None:
        kind = message["kind"]
        if kind == "journal":
            entry.reported = message["last"]
            self._record(entry, [_journal_entry(e) for e in message["entries"]])
        elif kind == "epoch":
            self._commit(entry, message)
        elif kind == "deleted":
            numbers, token = message["numbers"], entry.token
            self._fire(entry, lambda store: store.forget_epochs(entry.session_id, token, numbers))
            if entry.ended:
                self._let_go(entry)
        elif kind == "drained":
            if self._gateway.drain is not None:
                self._gateway.drain.drained(entry.session_id, message)
        elif kind == "ended":
            self.end(entry)
        elif kind == "abandoned" and not (entry.busy or entry.ended or self._gateway.draining):
            self.end_abandoned(entry)
        elif kind == "diverged":
            self._diverged(entry, message["seq"], message["message"])

    def _record(self, entry: SessionEntry, new: list[Entry]) -> None:
        """Write journal entries in groups: one transaction at a time a session."""
        if entry.ended:
            return  # its rows are gone
        entry.unwritten.extend(new)
        if entry.writing or not entry.unwritten:
            return
        entry.writing = True
        entries, entry.unwritten = entry.unwritten, []
        token, worker, last = entry.token, entry.worker, entry.reported

        def done(_: Any, error: OutlastError | None) -> None:
            entry.writing = False
            if isinstance(error, JournalUnavailable) and entry.worker is worker is not None:
                # They come before what has come since; the lease ends before they grow too many.
                entry.unwritten[:0] = entries
                self._failed(entry, token, error)
                self._gateway.after(JOURNAL_RETRY, lambda: self._record(entry, []))
                return
            if error is not None and not entry.ended:
                self._failed(entry, token, error)
            if worker is not None and entry.worker is worker:
                worker.send("written", last=last)
            self._record(entry, [])
            self.tidy(entry)

        self._gateway.database.submit(
            lambda store: store.record(entry.session_id, token, entries), done
        )

    def end_abandoned(self, entry: SessionEntry) -> None:
        """End a session whose program was killed before it could do that itself."""
        log.info(
            "session ended: nobody was attached to it for %g s",
            self._gateway.config.linger,
            extra={"action": "abandoned", "session": entry.session_id},
        )
        self.end(entry)

    def end(self, entry: SessionEntry) -> None:
        """End a session for good: its row says so, its epochs and its worker go."""
        token, worker = entry.token, entry.worker
        entry.ended = True
        entry.unwritten.clear()
        entry.crashes = CrashCount()

        def work(store: Store) -> list[EpochRow]:
            store.end_session(entry.session_id, token)
            return store.epochs(entry.session_id, unusable=True)

        def ended(rows: list[EpochRow] | None, error: OutlastError | None) -> None:
            if error is not None:
                self._failed(entry, token, error)
            if entry.worker is not worker or worker is None:
                return
            if rows and not self._gateway.draining:
                epochs = [[row.epoch, row.location] for row in rows]
                worker.send("delete", epochs=epochs, keep=[])
                self._gateway.after(REMOVAL, lambda: self._let_go(entry, worker))
            else:
                self._let_go(entry)

        self._gateway.database.submit(work, ended)

    def _let_go(self, entry: SessionEntry, worker: WorkerProcess | None = None) -> None:
        """Close the worker of a session that ended (if it is ``worker`` still)."""
        if entry.ended and worker in (None, entry.worker):
            self.close_worker(entry, forget=True)
            self.tidy(entry)

    # -- epochs --------------------------------------------------------------------------------

    def _commit(self, entry: SessionEntry, message: Json) -> None:
        """Commit an epoch in the journal, then tell its worker."""
        assert entry.row is not None
        token, worker = entry.row.token, entry.worker
        provider = self._gateway.config.provider.partition(":")[0]
        # One number whatever the number of tries: a commit whose answer was lost is no second
        # epoch on the same files.
        numbers: list[int] = []

        def work(store: Store) -> int:
            if not numbers:
                numbers.append(_number(store, entry.session_id, message["location"]))
            row = EpochRow(
                epoch=numbers[0],
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
            return numbers[0]

        def committed(number: int | None, error: OutlastError | None) -> None:
            if worker is None or entry.worker is not worker:
                return
            worker.send("committed", error=str(error) if error else "")
            if error is not None:
                self._failed(entry, token, error)
            if number is not None:
                entry.crashes.progressed(message["seq"])
                self._prune(entry, worker, token)

        self._gateway.database.submit(work, committed)

    def _prune(self, entry: SessionEntry, worker: WorkerProcess, token: int) -> None:
        """Mark old epochs; have those removed whose mark is older than a lease."""
        ttl = self._gateway.config.lease_ttl

        def work(store: Store) -> Json:
            now = time.time()
            rows = store.epochs(entry.session_id, unusable=True)
            marked = store.mark_deleting(entry.session_id, token, [row.epoch for row in rows])
            due = {r.epoch for r in marked if r.deleting_since and r.deleting_since + ttl < now}
            return {
                "epochs": [[row.epoch, row.location] for row in rows if row.epoch in due],
                "keep": [row.location for row in rows],
            }

        def marked(order: Json | None, error: OutlastError | None) -> None:
            if error is not None:
                self._failed(entry, token, error)
            if order is not None and entry.worker is worker:
                worker.send("delete", **order)

        self._gateway.database.submit(work, marked)

    # -- small things --------------------------------------------------------------------------

    def _fire(self, entry: SessionEntry, work: Any) -> None:
        """Run a transaction for a session that nobody waits for."""
        token = entry.token

        def done(_: Any, error: OutlastError | None) -> None:
            if error is not None:
                self._failed(entry, token, error)

        self._gateway.database.submit(work, done)

    def _failed(self, entry: SessionEntry, token: int, error: OutlastError) -> None:
        """Log a failed transaction; end the worker if the session is not ours any more."""
        log.error(
            "journal: %s",
            error,
            extra={"action": "journal_failed", "session": entry.session_id},
        )
        gone = isinstance(error, TokenSuperseded | SessionNotFound)
        if gone and entry.row is not None and entry.row.token == token:
            self.close_worker(entry, forget=True)


def _number(store: Store, session_id: str, location: str) -> int:
    """Return an epoch's number: the one it has, if a gateway that died has committed it."""
    for row in store.epochs(session_id, unusable=True):
        if row.location == location:
            return row.epoch
    return store.session(session_id).last_epoch + 1


def _journal_entry(entry: Json) -> Entry:
    what = entry["what"]
    if what == "handle":
        return HandleCreated(entry["kind"], entry["id"], 1, entry["recipe"], entry["seq"])
    if what == "destroyed":
        return HandleDestroyed(entry["kind"], entry["id"], entry["seq"])
    if what == "allocated":
        return Allocated(entry["address"], entry["size"], entry["device"], 0, entry["seq"])
    return Freed(entry["address"], entry["seq"])
