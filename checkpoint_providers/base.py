"""What a checkpoint provider is.

A provider holds whole, verified epochs and nothing else that can be seen: an epoch appears
by being published and cannot be changed. The *commit* of an epoch is not here: it is the
caller's database row, written after `CheckpointProvider.save` has returned.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from outlast.checkpoint_providers.locations import Location
from outlast.checkpoint_providers.manifest import check_epoch
from outlast.checkpoint_providers.reader import EpochReader
from outlast.checkpoint_providers.snapshot import Progress, Snapshot, StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StageHook
from outlast.checkpoint_providers.storage import storage_errors
from outlast.checkpoint_providers.writer import (
    EpochWriter,
    SaveSteps,
    write_epoch,
)
from outlast.errors import CheckpointCancelled

#: A save that waits for its turn looks this often whether it was cancelled.
CANCEL_POLL: Final = 0.05  # seconds


class CheckpointProvider(ABC):
    """Stores and loads epochs. Methods may be called from several threads.

    A plug-in implements the abstract methods with an `EpochWriter` and an `EpochReader` of
    its own, registers its class under the entry points ``outlast.checkpoint_providers``
    and proves itself by `outlast.checkpoint_providers.testing.ProviderConformance`.
    """

    #: Name in a provider spec.
    name: str

    def __init__(self) -> None:
        #: Called at each stage of the work, for fault injection.
        self.stage_hook: StageHook | None = None
        self._locks: dict[str, threading.Lock] = {}
        self._locks_guard = threading.Lock()

    @classmethod
    @abstractmethod
    def from_spec(cls, argument: str, state_directory: Path | None) -> Self:
        """Return the provider that ``name:argument`` names.

        Parameters
        ----------
        argument
            What follows the colon; empty if nothing does.
        state_directory
            Where the process keeps its files, if it has such a place.

        Raises
        ------
        ConfigError
            The argument cannot be used.
        """

    @property
    @abstractmethod
    def durable(self) -> bool:
        """Whether stored epochs survive the process."""

    @abstractmethod
    def open(self, location: str, digest: str | None = None) -> EpochReader:
        """Open a published epoch.

        Parameters
        ----------
        location
            `StoredEpoch.location`.
        digest
            `StoredEpoch.digest`, to refuse an epoch that was put in place of the stored one.

        Raises
        ------
        CheckpointCorrupt
            It is missing, incomplete, or its manifest is damaged or another epoch's.
        CheckpointError
            The location is not of this provider, or the storage fails.
        """

    @abstractmethod
    def list(self, session_id: str) -> list[StoredEpoch]:
        """Return the published epochs of a session, oldest first.

        Epochs whose manifest is damaged are left out and logged.
        """

    @abstractmethod
    def delete(self, location: str) -> None:
        """Remove a published epoch; does nothing if there is none."""

    @abstractmethod
    def clean(self, session_id: str, keep: AbstractSet[str]) -> tuple[str, ...]:
        """Remove what dead writers left, and epochs older than the newest kept one.

        Only the holder of the session may call this. Epochs newer than all in ``keep``
        stay: they may be about to be committed.

        Returns
        -------
        tuple[str, ...]
            Names of what was removed.
        """

    @abstractmethod
    def _begin(self, location: Location, size: int) -> EpochWriter:
        """Start to write an epoch of ``size`` data bytes. May raise ``OSError``."""

    def check(self) -> None:  # noqa: B027 - most providers find out with the first epoch
        """Find out, before anything depends on it, whether epochs can be stored at all.

        Raises
        ------
        ConfigError
            They cannot, and what to do about it.
        """

    def close(self) -> None:  # noqa: B027 - most providers hold nothing
        """Release what the provider holds."""

    def save(
        self,
        snapshot: Snapshot,
        cancelled: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> StoredEpoch:
        """Store an epoch and return it published, durable and verified.

        Saves of one session take turns.

        Parameters
        ----------
        snapshot
            What to store; its buffers are read in place.
        cancelled
            Ends the save soon after it is set.
        progress
            Told of the bytes written.

        Raises
        ------
        CheckpointCancelled
            ``cancelled`` was set.
        CheckpointCorrupt
            What was read back is not what was written.
        CheckpointError
            The epoch cannot be stored, or the storage fails or has no room.

        Notes
        -----
        When it raises, nothing of the epoch is left behind and older ones are untouched.
        """
        # Found now, not after minutes of writing.
        check_epoch(snapshot.epoch, snapshot.lay_out())
        location = snapshot.location
        steps = SaveSteps(self.stage_hook, cancelled, str(location))
        with (
            self._turn(location.session, cancelled),
            storage_errors("cannot store", self._where(location), snapshot.size),
            ExitStack() as undo,
        ):
            steps.reach(Stage.OPEN_TEMP)
            writer = self._begin(location, snapshot.size)
            undo.callback(writer.discard)
            stored = write_epoch(writer, snapshot, steps, progress)
            undo.pop_all()
        return stored

    def _where(self, location: Location) -> str:
        """Return how errors name the place of an epoch."""
        return str(location)

    @contextmanager
    def _turn(self, session: str, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Hold the lock of a session, so that its saves and removals never interleave."""
        with self._locks_guard:
            lock = self._locks.setdefault(session, threading.Lock())
        while not lock.acquire(timeout=CANCEL_POLL):
            if cancelled is not None and cancelled.is_set():
                raise CheckpointCancelled("cancelled while another save of the session ran")
        try:
            yield
        finally:
            lock.release()
