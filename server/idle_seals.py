"""Seals of a session that stands idle, so that its worker may die and nothing is lost.

A worker that is killed while its session is idle has left everything with the keeper: the next
one maps the memory, and nothing is read from the store or replayed. A session in use has no seal,
and what it costs is one look at a flag for each batch of calls.

The epoch that a seal consists of is written beside the calls. One that comes meanwhile makes it
worthless, and a session that moves and rests in turn is not sealed so often that it would matter.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from outlast.checkpoint_providers import Snapshot
from outlast.errors import CheckpointError, KeeperError, OutlastError
from outlast.server import handover
from outlast.server.channel import Json
from outlast.server.checkpointer import ALLOCATION, Identity
from outlast.server.datalink import DataLink
from outlast.server.deposits import Deposit
from outlast.server.epochs import EpochKeeper
from outlast.server.executor import Executor
from outlast.server.keeper.client import Keeper
from outlast.session.host import State

log = logging.getLogger(__name__)

#: How long the keeper may take to answer; a call that comes may have to wait for that.
TIMEOUT = 2.0  # seconds
#: How long a keeper may take to start.
KEEPER_PATIENCE = 5.0  # seconds
#: No seal is made for so many times the work that the last one was.
REST = 20
#: How long none is made after one that failed; it doubles with each further one.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds
#: How often it is looked whether the keeper is still there.
LOOK = 1.0  # seconds
#: A session is described, and its module variables are copied, while calls wait. Where that
#: would take more than moments there are no seals.
MOST_OBJECTS, MOST_VARIABLES, MOST_BYTES = 10_000, 300, 32 << 20
#: How soon a call gets the interpreter back from the thread that writes.
SWITCH = 0.5e-3  # seconds


@dataclass(slots=True)
class Draft:
    """The epoch of a seal on its way."""

    seq: int
    identity: Identity
    cancelled: threading.Event = field(default_factory=threading.Event)
    #: The epoch's descriptor, or why there is none; None while it is being written.
    outcome: int | OutlastError | None = None
    #: Seconds of work.
    work: float = 0.0

    def write(self, snapshot: Snapshot) -> None:
        """Write the epoch, in a thread of its own."""
        outcome: int | OutlastError = CheckpointError("the epoch of a seal was not written")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            outcome = handover.write(snapshot, self.cancelled)
        except OutlastError as error:
            outcome = error
        finally:
            sys.setswitchinterval(interval)
            self.work += time.thread_time()
            self.outcome = outcome

    def close(self) -> None:
        """Give the file back."""
        if isinstance(self.outcome, int):
            os.close(self.outcome)


class IdleSeals:
    """Makes them, in the worker's main thread between two calls.

    Parameters
    ----------
    start : Json
        The gateway's message.
    executor, epochs, link
        The worker's.
    """

    def __init__(
        self, start: Json, executor: Executor, epochs: EpochKeeper, link: DataLink
    ) -> None:
        #: What the keeper has.
        keeper = Keeper(Path(start["state_dir"]), TIMEOUT)
        self.deposit = Deposit(keeper, start["session"], start["token"], executor)
        self._session: str = start["session"]
        self._after: float = start["idle_seal"]
        self._keep_for: float = start["keep_for"]
        self._executor = executor
        self._epochs = epochs
        self._link = link
        self._batches = executor.rest.batches
        self._idle_since = time.monotonic()
        self._draft: Draft | None = None
        #: Drafts that are worth nothing and still being written.
        self._dropped: list[Draft] = []
        #: The deposit's seal is one of ours, and not of the worker before.
        self._ours = False
        self._starter: subprocess.Popen[bytes] | None = None
        self._keeper_by = 0.0
        self._look_at = 0.0
        self._not_before = 0.0
        self._pause = FIRST_PAUSE

    @property
    def in_hand(self) -> bool:
        """Whether `step` has something to do at once."""
        draft = self._draft
        return draft is not None and draft.outcome is not None and self.deposit.claimed

    def step(self) -> None:
        """Go on, as far as that takes a moment."""
        if not self._after:
            return
        now = time.monotonic()
        self._tidy()
        if self._executor.rest.batches != self._batches:
            self._batches, self._idle_since = self._executor.rest.batches, now
            self._drop_draft()
        elif self._draft is not None:
            self._go_on(self._draft)
        elif self.deposit.at_rest and self._ours:
            self._look_after(now)
        elif now >= max(self._idle_since + self._after, self._not_before) and self._quiet():
            self._begin()

    def stop(self) -> None:
        """Make no more seals, and have given back what the keeper has."""
        self._after = 0.0
        self._drop_draft()
        self.deposit.end()

    # -- inside ----------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Return whether nothing is under way, and there is something to keep."""
        ex = self._executor
        return (
            bool(ex.allocations)
            and ex.host.state is State.RUNNING
            and not (ex.poisoned or ex.waits or self._epochs.busy or self._dropped)
            and ex.driver.done(ex.driver.ticket())
        )

    def _begin(self) -> None:
        began = time.thread_time()
        try:
            self._require_small()
            snapshot = self._epochs.without_memory(copy=True)
        except MemoryError:
            self._failed(CheckpointError("there is no memory for a copy of module variables"))
            return
        except OutlastError as error:
            self._failed(error)
            return
        self._draft = draft = Draft(snapshot.epoch.seq, self._epochs.identity)
        draft.work = time.thread_time() - began

        def write() -> None:
            draft.write(snapshot)
            self._link.wake()

        threading.Thread(target=write, name="idle-seal", daemon=True).start()

    def _require_small(self) -> None:
        """Refuse to seal what would take long.

        Raises
        ------
        CheckpointError
            There is more than is allowed of something; names it.
        """
        ex = self._executor
        variables = [r.size for r in ex.driver.regions() if r.kind != ALLOCATION]
        for count, most, what in (
            (len(ex.handles) + len(ex.allocations), MOST_OBJECTS, "objects"),
            (len(variables), MOST_VARIABLES, "module variables"),
            (sum(variables), MOST_BYTES, "bytes of module variables"),
        ):
            if count > most:
                raise CheckpointError(f"it has {count} {what}, and {most} are allowed")

    def _go_on(self, draft: Draft) -> None:
        if draft.outcome is None:
            return
        ex, began = self._executor, time.thread_time()
        if ex.host.state is not State.RUNNING or ex.poisoned:
            self._drop_draft()
        elif self._epochs.identity is not draft.identity:
            self._drop_draft()  # it tells what another client is owed
        elif isinstance(draft.outcome, OutlastError):
            self._drop_draft()
            self._failed(draft.outcome)
        else:
            try:
                done = self._leave(draft.seq, draft.outcome)
            except OutlastError as error:
                self._drop_draft()
                self._failed(error)
                return
            draft.work += time.thread_time() - began
            if done:
                self._succeeded(draft)

    def _leave(self, seq: int, epoch: int) -> bool:
        """Leave memory and seal with the keeper; return whether all of it is there."""
        if not self._has_keeper():
            return False
        if not handover.add_memory(self.deposit, self._executor.driver, self._link.has_more):
            return False  # somebody calls: the rest is for later, if there is one
        self.deposit.seal(seq, epoch)
        return True

    def _has_keeper(self) -> bool:
        """Return whether we are the holder at a keeper; have one started if none runs."""
        keeper = self.deposit.keeper
        if not (keeper.connected or self._keeper_by):
            self.deposit.forget()
            keeper.close()
            self._starter = keeper.launch(self._keep_for)
            self._keeper_by = time.monotonic() + KEEPER_PATIENCE
        if self._starter is not None:
            return False
        try:
            self.deposit.claim()
        except KeeperError as error:
            if error.reason == "unreachable" and time.monotonic() < self._keeper_by:
                return False  # it has been started, and does not listen yet
            raise
        self._keeper_by = 0.0
        if not self.deposit.marks:
            self.deposit.end()
            raise KeeperError("the keeper is of an older version", reason="invalid")
        return True

    def _look_after(self, now: float) -> None:
        """Notice it when the keeper has ended: then there has to be another seal."""
        if now >= self._look_at:
            self._look_at = now + LOOK
            if self.deposit.lost:
                self.deposit.forget()

    def _succeeded(self, draft: Draft) -> None:
        self._ours, self._pause = True, FIRST_PAUSE
        self._drop_draft()
        self._not_before = time.monotonic() + REST * draft.work
        log.debug(
            "idle session sealed",
            extra={"action": "idle_seal", "session": self._session, "seq": draft.seq},
        )

    def _failed(self, error: OutlastError) -> None:
        level = logging.WARNING if self._pause == FIRST_PAUSE else logging.DEBUG
        log.log(
            level,
            "the idle session cannot be sealed: %s; if its worker dies, it goes on from its "
            "checkpoint",
            error,
            extra={"action": "no_idle_seal", "session": self._session},
        )
        self._keeper_by = 0.0
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _drop_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.cancelled.set()
            self._dropped.append(draft)
            self._tidy()

    def _tidy(self) -> None:
        """Close the files of drafts that are written and not wanted, and reap who has ended."""
        if self._starter is not None and self._starter.poll() is not None:
            self._starter = None
        if self._dropped:
            for draft in [d for d in self._dropped if d.outcome is not None]:
                draft.close()
                self._dropped.remove(draft)
