"""When a worker takes epochs, and what it tells its client and its gateway of them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from outlast.checkpoint_providers import Snapshot, StoredEpoch
from outlast.errors import CheckpointCancelled, CheckpointError, OutlastError
from outlast.server.channel import Channel, Json
from outlast.server.checkpointer import Checkpointer, Identity
from outlast.server.datalink import DataLink
from outlast.server.stillness import TRY_AGAIN, Stillness, room
from outlast.session import wire
from outlast.session.host import HostSession, State
from outlast.session.schema import Kind

log = logging.getLogger(__name__)

#: How long no epoch is begun after one that failed; it doubles with each further one.
FIRST_PAUSE = 0.5  # seconds
LONGEST_PAUSE = 30.0  # seconds

#: Told of the end of an epoch: None when it is committed, else why it is not.
Then = Callable[[OutlastError | None], None]


class EpochKeeper:
    """Takes, commits and removes the epochs of one session.

    An epoch is cut in the worker's main thread, saved beside the calls, and counts only
    once the gateway has committed its row.
    """

    def __init__(
        self,
        identity: Identity,
        host: HostSession,
        checkpointer: Checkpointer,
        link: DataLink,
        channel: Channel,
        interval: float,
        deadline: float,
        grace: float,
    ) -> None:
        self.identity = identity
        #: The client's log fills up: take one soon.
        self.requested = False
        #: Seq of the newest committed epoch.
        self.last_seq = 0
        self._host = host
        self._checkpointer = checkpointer
        self._executor = checkpointer.executor
        self._link = link
        self._channel = channel
        self._interval = interval
        self._deadline = deadline
        self._grace = grace
        self._warned = False
        self._began = 0.0
        self._last_at = time.monotonic()
        self._not_before = 0.0
        self._pause = FIRST_PAUSE
        self._saved: deque[StoredEpoch | OutlastError] = deque()
        self._uncommitted: StoredEpoch | None = None
        self._then: Then | None = None
        self._cleaned = False
        #: The session stands still for an epoch that is too large for a copy.
        self._still: Stillness | None = None
        #: Bytes that were read the last time that this took too long.
        self._managed = 0

    @property
    def busy(self) -> bool:
        """Whether an epoch is being saved or waits for its commit."""
        return self._checkpointer.saving or bool(self._saved) or self._uncommitted is not None

    @property
    def has_news(self) -> bool:
        """Whether `step` has something to do at once."""
        return bool(self._saved) or (self._still is not None and self._still.over)

    def step(self) -> None:
        """Pass on what was saved, and begin an epoch if one is due."""
        self._watch_stillness()
        while self._saved:
            self._on_saved(self._saved.popleft())
        if self._due():
            self.begin()

    def begin(self, then: Then | None = None) -> None:
        """Cut an epoch here and save it beside the calls that follow."""
        self.requested = False
        self._last_at = time.monotonic()
        obstacle = self._obstacle()
        if obstacle:
            self._report(CheckpointError(obstacle), then)
            return
        size = self._checkpointer.size
        hold = room(size)
        if size <= hold:
            self.save(then, copy=True)
        elif self._managed and size - hold > TRY_AGAIN * self._managed and self._host.peer:
            text = f"{size} bytes are too much to be written within {self._deadline:g} s"
            self._report(CheckpointError(f"{text}: give --epoch-deadline more"), then)
        else:
            self._still = Stillness(self._host, self._deadline, self._link.wake)
            self.save(then, copy=False, hold=hold)

    def save(self, then: Then | None, copy: bool, hold: int = 0) -> None:
        """Save the idle device's state.

        Parameters
        ----------
        then
            Told of the end.
        copy
            Copy the device's memory, so that calls can go on meanwhile.
        hold
            Without ``copy``: bytes that may be copied all the same, when the rest is written.
        """
        self._began = time.monotonic()
        cut = self._host.cut()
        generation = self._host.generation
        try:
            snapshot = self._checkpointer.snapshot(
                self.identity, generation, cut, copy, still=self._still, hold=hold
            )
        except MemoryError:
            self._end_stillness()
            self._report(CheckpointError("there is no memory for a copy of the device's"), then)
            return
        except OutlastError as error:
            self._end_stillness()
            self._report(error, then)
            return
        self._then = then

        def done(outcome: StoredEpoch | OutlastError) -> None:
            self._saved.append(outcome)
            self._link.wake()

        self._checkpointer.save_beside(snapshot, done)

    def without_memory(self, copy: bool) -> Snapshot:
        """Return an epoch of the idle device without its allocations' memory.

        With ``copy`` nothing in it changes when calls go on.

        Raises
        ------
        CheckpointError
            The device fails.
        """
        cut, generation = self._host.cut(), self._host.generation
        return self._checkpointer.snapshot(self.identity, generation, cut, copy, shared=True)

    def on_committed(self, message: Json) -> None:
        """Take in the gateway's word on the epoch that was saved."""
        stored, self._uncommitted = self._uncommitted, None
        then, self._then = self._then, None
        if message.get("error") or stored is None:
            self._report(CheckpointError(message.get("error") or "nothing was saved"), then)
            return
        self._pause, self._not_before = FIRST_PAUSE, 0.0
        self._host.committed(stored.seq)
        self.last_seq = stored.seq
        log.info(
            "epoch committed",
            extra={
                "action": "epoch_committed",
                "session": self.identity.session_id,
                "epoch": stored.seq,
                "bytes": stored.size,
                "recoverable": self._host.recoverable,
            },
        )
        self._tell("")
        if then is not None:
            then(None)

    def resend(self) -> None:
        """Ask for the commit again: whoever was asked before is gone."""
        if self._uncommitted is not None:
            self._ask_commit(self._uncommitted)

    def delete(self, message: Json) -> None:
        """Remove old epochs whose rows were marked long enough ago.

        The first time also what writers left that were killed: files without a row.
        """
        self._clean(message["keep"])
        deleted = []
        for number, location in message["epochs"]:
            try:
                self._checkpointer.provider.delete(location)
            except OutlastError as error:
                log.warning("an old epoch stays: %s", error, extra={"action": "delete_failed"})
                continue
            deleted.append(number)
        if deleted:
            self._channel.send({"kind": "deleted", "numbers": deleted})

    # -- inside --------------------------------------------------------------------------------

    def _clean(self, keep: list[str]) -> None:
        if self._cleaned:
            return
        self._cleaned = True
        try:
            left = self._checkpointer.provider.clean(self.identity.session_id, frozenset(keep))
        except OutlastError as error:
            log.warning("leftovers stay: %s", error, extra={"action": "clean_failed"})
            return
        if left:
            log.info(
                "removed what was left of %d checkpoints", len(left), extra={"action": "clean"}
            )

    def _watch_stillness(self) -> None:
        """Let calls go on once memory is read, or when they have waited too long."""
        still = self._still
        if still is not None and still.watch():
            if not still.over:
                self._managed = max(still.read, 1)
            self._still = None

    def _end_stillness(self) -> None:
        still, self._still = self._still, None
        if still is not None:
            still.release()

    def _due(self) -> bool:
        if self.busy or self._host.state is not State.RUNNING or self._executor.poisoned:
            return False
        if self._host.applied <= self.last_seq:
            if self.requested:
                self.requested = False
                self._tell("")  # it is there already
            return False
        now = time.monotonic()
        if now < self._not_before:
            return False
        waited = now - self._last_at
        return self.requested or bool(self._interval and waited >= self._interval)

    def _obstacle(self) -> str:
        """Return why no epoch can be taken now, or nothing: then the device is idle."""
        if self.busy:
            return "another epoch is being saved"
        if not self._executor.poisoned and not self._executor.idle(self._deadline):
            return f"the device did not become idle within {self._deadline:g} s"
        if self._executor.poisoned:
            return f"the context is poisoned (error {self._executor.poisoned})"
        return ""

    def _on_saved(self, outcome: StoredEpoch | OutlastError) -> None:
        self._end_stillness()
        if isinstance(outcome, OutlastError):
            then, self._then = self._then, None
            self._report(outcome, then)
            return
        self._uncommitted = outcome
        self._compare_with_grace(outcome.size)
        self._ask_commit(outcome)

    def _ask_commit(self, stored: StoredEpoch) -> None:
        self._channel.send(
            {
                "kind": "epoch",
                "seq": stored.seq,
                "location": stored.location,
                "size": stored.size,
                "digest": stored.digest,
                "created_at": time.time(),
            }
        )

    def _compare_with_grace(self, size: int) -> None:
        """Say it before the shutdown if a save takes longer than the grace time."""
        took = time.monotonic() - self._began
        if took > self._grace and not self._warned:
            self._warned = True
            log.warning(
                "a checkpoint of this session (%d bytes) took %.1f s; at shutdown there are %g s: "
                "give --grace more, or it will not be saved",
                size,
                took,
                self._grace,
                extra={"action": "grace_too_short", "session": self.identity.session_id},
            )

    def _report(self, error: OutlastError, then: Then | None) -> None:
        # A session that waits for epochs which fail all the time would do nothing else.
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        # What is cancelled is wanted no more: its program has ended the session, say.
        level = logging.INFO if isinstance(error, CheckpointCancelled) else logging.ERROR
        log.log(
            level,
            "epoch failed: %s",
            error,
            extra={"action": "epoch_failed", "session": self.identity.session_id},
        )
        self._tell(str(error))
        if then is not None:
            then(error)

    def _tell(self, error: str) -> None:
        host = self._host
        if host.peer is None:
            return
        message = wire.pack_message(
            Kind.EPOCH,
            generation=host.generation,
            seq=self.last_seq,
            recoverable=host.recoverable,
            error=error[:1000],
        )
        self._link.send(host.peer, [message])
