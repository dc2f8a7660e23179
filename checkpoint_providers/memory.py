"""Epochs in the process's own memory: for tests and for rehearsals, gone with the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Self

from outlast.checkpoint_providers.base import CheckpointProvider
from outlast.checkpoint_providers.locations import Location, session_directory
from outlast.checkpoint_providers.manifest import DATA_FILE, MANIFEST_FILE, Manifest
from outlast.checkpoint_providers.reader import EpochReader, open_manifest
from outlast.checkpoint_providers.snapshot import StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StageHook, StagePoint
from outlast.checkpoint_providers.writer import EpochWriter
from outlast.errors import CheckpointCorrupt, CheckpointError, ConfigError

logger = logging.getLogger(__name__)


class MemoryProvider(CheckpointProvider):
    """Keeps epochs in this object."""

    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        #: Files of each published epoch.
        self._epochs: dict[Location, dict[str, bytes | bytearray]] = {}
        self._guard = threading.Lock()

    @classmethod
    def from_spec(cls, argument: str, state_directory: Path | None) -> Self:
        """Return an empty provider; it takes no argument."""
        if argument:
            raise ConfigError(f"the memory provider takes no argument, got {argument!r}")
        return cls()

    @property
    def durable(self) -> bool:
        """False: epochs die with the process."""
        return False

    def files(self, location: str) -> dict[str, bytes | bytearray]:
        """Return the files of an epoch, by name; changing them damages the epoch."""
        return self._epochs[Location.parse(location)]

    def open(self, location: str, digest: str | None = None) -> EpochReader:
        """Open a published epoch."""
        place = Location.parse(location)
        with self._guard:
            files = self._epochs.get(place)
        if files is None:
            raise CheckpointCorrupt(f"memory holds no epoch {location}", path=location)
        return _open(files, place, digest, self.stage_hook)

    def list(self, session_id: str) -> list[StoredEpoch]:
        """Return the published epochs of a session, oldest first."""
        session = session_directory(session_id)
        with self._guard:
            found = sorted(place for place in self._epochs if place.session == session)
        stored = []
        for place in found:
            try:
                with self.open(str(place)) as reader:
                    size = len(self._epochs[place][MANIFEST_FILE])
                    stored.append(StoredEpoch.of(place, reader.manifest, size))
            except (CheckpointError, KeyError) as error:
                logger.warning("An epoch cannot be listed: %s", error)
        return stored

    def delete(self, location: str) -> None:
        """Remove a published epoch; does nothing if there is none."""
        place = Location.parse(location)
        with self._turn(place.session), self._guard:
            self._epochs.pop(place, None)

    def clean(self, session_id: str, keep: AbstractSet[str]) -> tuple[str, ...]:
        """Remove epochs older than the newest kept one."""
        session = session_directory(session_id)
        kept = {Location.parse(location) for location in keep}
        with self._turn(session), self._guard:
            orphans = sorted(
                place
                for place in self._epochs.keys() - kept
                if place.session == session and any(place < newer for newer in kept)
            )
            for place in orphans:
                del self._epochs[place]
        return tuple(map(str, orphans))

    def _begin(self, location: Location, size: int) -> EpochWriter:
        return _MemoryWriter(self, location)

    def _publish(self, location: Location, files: dict[str, bytes | bytearray]) -> None:
        with self._guard:
            if location in self._epochs:
                raise CheckpointError(f"memory already holds an epoch {location}")
            self._epochs[location] = files


class _MemoryWriter(EpochWriter):
    def __init__(self, provider: MemoryProvider, location: Location) -> None:
        self._provider = provider
        self._location = location
        self._data = bytearray()
        self._files: dict[str, bytes | bytearray] = {DATA_FILE: self._data}

    def write(self, views: Sequence[memoryview]) -> None:
        for view in views:
            self._data += view

    def sync(self) -> None:
        """Nothing is behind memory that could lag."""

    def put_manifest(self, raw: bytes) -> None:
        self._files[MANIFEST_FILE] = raw

    def reader(self) -> EpochReader:
        return _open(self._files, self._location, None, None)

    def publish(self) -> None:
        self._provider._publish(self._location, self._files)

    def discard(self) -> None:
        self._files.clear()


class _MemoryReader(EpochReader):
    def __init__(
        self, manifest: Manifest, source: str, data: bytes | bytearray, hook: StageHook | None
    ) -> None:
        super().__init__(manifest, source)
        self._data = data
        self._hook = hook

    def _read_at(self, offset: int, view: memoryview) -> int:
        if self._hook is not None:
            self._hook(StagePoint(Stage.READ, offset))
        with memoryview(self._data) as data:
            part = data[offset : offset + len(view)]
            view[: len(part)] = part
            return len(part)

    def close(self) -> None:
        """Nothing is held open."""


def _open(
    files: dict[str, bytes | bytearray],
    place: Location,
    digest: str | None,
    hook: StageHook | None,
) -> EpochReader:
    for name in (MANIFEST_FILE, DATA_FILE):
        if name not in files:
            raise CheckpointCorrupt(f"memory:{place} has no {name}", path=str(place))
    source = f"memory:{place}"
    data = files[DATA_FILE]
    manifest = open_manifest(bytes(files[MANIFEST_FILE]), source, place, digest, len(data))
    return _MemoryReader(manifest, source, data, hook)
