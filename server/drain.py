"""The shutdown: every session saved within the grace time, or named."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from outlast.errors import KeeperError, OutlastError
from outlast.server.departures import PATIENCE

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: Exit code when a session could not be saved.
NOT_SAVED = 3
#: Part of the grace time kept for the journal and for ending the processes.
RESERVE = 0.1
#: How often a keeper that starts is looked for.
KEEPER_RETRY = 0.05  # seconds
#: Time until the end once a second signal has come.
HURRY = 1.0  # seconds


class Drain:
    """Tells every worker to save and stop, and waits within the grace time.

    Parameters
    ----------
    gateway : Gateway
        Whose workers.
    hand_over : bool
        Device memory goes to the keeper instead of the store.
    """

    def __init__(self, gateway: Gateway, hand_over: bool = False) -> None:
        self._gateway = gateway
        self._hand_over = hand_over
        self._waiting: set[str] = set()
        self._unsaved: list[str] = []
        #: Every session is saved or named; what is left is to give the lease back.
        self.finished = False
        grace = gateway.config.grace
        self._end = time.monotonic() + grace
        self._deadline = self._end - grace * RESERVE

    @property
    def time_left(self) -> float:
        """Seconds until the process has to be gone."""
        return max(0.0, self._end - time.monotonic())

    def begin(self) -> None:
        """Start: all workers at once."""
        sessions = self._gateway.sessions
        for spare in sessions.pool.dismiss():
            sessions.departures.await_end(spare)
        entries = sessions.running()
        ready = [e for e in entries if e.worker is not None and e.worker.ready and not e.ended]
        if self._hand_over and ready:
            self._start_keeper()
        self._waiting = {entry.session_id for entry in ready}
        for entry in ready:
            self._tell(entry, hasten=False)
        for entry in entries:
            if entry not in ready:
                # Still restoring (its stored epoch stands), or ended by its program.
                sessions.close_worker(entry)
        self._gateway.after(max(0.0, self._deadline - time.monotonic()), self._give_up)
        self._check()

    def hasten(self) -> None:
        """Do not wait for saves that are under way (a second SIGTERM)."""
        log.warning("drain hastened", extra={"action": "drain_hastened"})
        for entry in self._gateway.sessions.running():
            if entry.session_id in self._waiting:
                self._tell(entry, hasten=True)
        self._end = min(self._end, time.monotonic() + HURRY)
        self._gateway.after(HURRY / 2, self._give_up)

    def drained(self, session_id: str, outcome: dict[str, Any]) -> None:
        """Note what became of a session."""
        if session_id not in self._waiting:
            return
        self._waiting.discard(session_id)
        if outcome["kept"]:
            log.info(
                "session handed over",
                extra={"action": "handed_over", "session": session_id, "seq": outcome["applied"]},
            )
        elif outcome["saved"]:
            log.info(
                "session saved",
                extra={"action": "saved", "session": session_id, "epoch": outcome["epoch"]},
            )
        else:
            self._name(session_id, outcome["reason"], outcome)
        self._check()

    def closed(self, session_id: str) -> None:
        """Note that a session needs no saving any more: its program has ended it, say."""
        self._waiting.discard(session_id)
        self._check()

    def gone(self, session_id: str) -> None:
        """Note that a session's worker died while it was to save."""
        if session_id in self._waiting:
            self._waiting.discard(session_id)
            self._name(session_id, "its worker died", {})
            self._check()

    def _tell(self, entry: Any, hasten: bool) -> None:
        order = {"deadline": self._deadline, "hasten": hasten, "hand_over": self._hand_over}
        entry.worker.send("drain", **order)

    def _start_keeper(self) -> None:
        """Have a keeper run; workers come to rest while it starts, and wait for it then."""
        try:
            starter = self._gateway.kept.launch(self._gateway.config.keep_for)
        except KeeperError as error:
            log.error("sessions are saved instead: %s", error, extra={"action": "no_keeper"})
            self._hand_over = False
            return
        if starter is not None:
            self._gateway.sessions.departures.await_end(starter)
            self._hold_keeper()

    def _hold_keeper(self) -> None:
        """Keep the keeper waiting until the last worker has come to rest."""
        if not self.finished and not self._gateway.kept.hold():
            self._gateway.after(KEEPER_RETRY, self._hold_keeper)

    def _name(self, session_id: str, reason: str, outcome: dict[str, Any]) -> None:
        epoch = f"epoch {outcome['epoch']}" if "epoch" in outcome else "its newest epoch"
        if outcome.get("client", True):
            rest = f"recoverable from {epoch} by its client"
        else:
            first = outcome.get("epoch", 0) + 1
            rest = f"calls {first} to {outcome.get('applied')} are lost unless its client comes"
        self._unsaved.append(session_id)
        log.error(
            "not saved: %s: %s; %s",
            session_id,
            reason,
            rest,
            extra={"action": "not_saved", "session": session_id},
        )

    def _give_up(self) -> None:
        for session_id in sorted(self._waiting):
            self._name(session_id, "busy", {})
        self._waiting.clear()
        self._check()

    def _check(self) -> None:
        if self._waiting or self.finished:
            return
        self.finished = True
        self._gateway.sessions.stop_all(min(PATIENCE, self.time_left))

        def released(_: Any, error: OutlastError | None) -> None:
            if error is not None:
                log.error("the lease was not released: %s", error, extra={"action": "release"})
            self._finish()

        server_id = self._gateway.server_id
        self._gateway.database.submit(
            lambda store: store.release_server(server_id), released, patience=1.0
        )
        # A journal that does not answer must not hold us: the lease ends by itself.
        self._gateway.after(self.time_left, self._finish)

    def _finish(self) -> None:
        self._gateway.finish(NOT_SAVED if self._unsaved else 0)
