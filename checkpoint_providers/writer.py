"""The one way in which all providers write an epoch.

Temporary place -> data -> fsync -> manifest -> read back -> publish. Hashing runs beside
writing, in a thread of its own; both work on megabytes at a time without the GIL.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

from blake3 import blake3

from outlast.checkpoint_providers import pieces
from outlast.checkpoint_providers.manifest import CHUNK_SIZE, Manifest, seal
from outlast.checkpoint_providers.reader import EpochReader
from outlast.checkpoint_providers.snapshot import Progress, Snapshot, StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StagePoint
from outlast.errors import CheckpointCancelled, CheckpointError

#: Bytes handed to the storage at once; cancelling waits for no more than this.
WRITE_SIZE: Final = 1 << 20  # 1 MiB


class EpochWriter(ABC):
    """One epoch on its way into a provider; nobody sees it before `publish`.

    Methods may raise ``OSError``; the save turns it into a `CheckpointError`.
    """

    #: Folder of its files, if it is a local one.
    folder: Path | None = None

    @abstractmethod
    def write(self, views: Sequence[memoryview]) -> None:
        """Append bytes, at most `WRITE_SIZE` of them in all, to the data."""

    @abstractmethod
    def sync(self) -> None:
        """Make the data durable."""

    @abstractmethod
    def put_manifest(self, raw: bytes) -> None:
        """Store the manifest beside the data, durably."""

    @abstractmethod
    def reader(self) -> EpochReader:
        """Open what was written, to verify it."""

    @abstractmethod
    def publish(self) -> None:
        """Make the epoch visible, whole and durable, in one step that never replaces another."""

    @abstractmethod
    def discard(self) -> None:
        """Remove every trace of an epoch that is not to stay. Raises nothing."""


class SaveSteps:
    """Takes a save from stage to stage: calls the hook, and stops once it is cancelled."""

    def __init__(
        self,
        hook: Callable[[StagePoint], None] | None,
        cancelled: threading.Event | None,
        name: str,
    ) -> None:
        self.cancelled = cancelled
        self.folder: Path | None = None
        self._hook = hook
        self._name = name

    def reach(self, stage: Stage, offset: int = 0) -> None:
        """Pass a point of the save.

        Raises
        ------
        CheckpointCancelled
            The save was cancelled.
        """
        if self._hook is not None:
            self._hook(StagePoint(stage, offset, self.folder))
        if self.cancelled is not None and self.cancelled.is_set():
            raise CheckpointCancelled(f"saving {self._name} was cancelled at stage {stage}")


def write_epoch(
    writer: EpochWriter, snapshot: Snapshot, steps: SaveSteps, progress: Progress | None
) -> StoredEpoch:
    """Write, verify and publish a snapshot."""
    steps.folder = writer.folder
    chunks = _write_data(writer, snapshot, steps, progress)
    steps.reach(Stage.FSYNC)
    writer.sync()
    manifest, raw = seal(snapshot.epoch, snapshot.lay_out(), chunks)
    steps.reach(Stage.MANIFEST)
    writer.put_manifest(raw)
    steps.reach(Stage.VERIFY)
    _verify(writer, manifest, steps.cancelled)
    steps.reach(Stage.RENAME)
    writer.publish()
    return StoredEpoch.of(snapshot.location, manifest, len(raw))


def _verify(writer: EpochWriter, manifest: Manifest, cancelled: threading.Event | None) -> None:
    with writer.reader() as reader:
        if reader.manifest != manifest:
            raise CheckpointError(f"{reader.source}: the manifest read back is not the one written")
        reader.verify(cancelled)


def _write_data(
    writer: EpochWriter, snapshot: Snapshot, steps: SaveSteps, progress: Progress | None
) -> list[str]:
    """Write all regions back to back and return the digests of the chunks."""
    total = snapshot.size
    written = 0
    digests: list[str] = []
    hasher = blake3()
    hashed: Future[None] | None = None
    steps.reach(Stage.WRITE_DATA)
    with (
        ThreadPoolExecutor(1, thread_name_prefix="checkpoint-hash") as pool,
        closing(_batches(snapshot)) as batches,
    ):
        for views in batches:
            hashed = pool.submit(_update, hasher, views)
            writer.write(views)
            written += sum(map(len, views))
            hashed.result()
            if written % CHUNK_SIZE == 0 or written == total:
                digests.append(hasher.hexdigest())
                hasher = blake3()
            if progress is not None:
                progress(written, total)
            steps.reach(Stage.WRITE_DATA, written)
    return digests


def _update(hasher: blake3, views: Sequence[memoryview]) -> None:
    for view in views:
        hasher.update(view)


def _batches(snapshot: Snapshot) -> Generator[list[memoryview]]:
    """Cut the regions' bytes into lists of views of `WRITE_SIZE` in all (the last: fewer)."""
    batch: list[memoryview] = []
    room = WRITE_SIZE
    with closing(pieces.views(snapshot)) as views:
        for view in views:
            while len(view):
                part, view = view[:room], view[room:]
                batch.append(part)
                room -= len(part)
                if room == 0:
                    yield batch
                    batch, room = [], WRITE_SIZE
    if batch:
        yield batch
