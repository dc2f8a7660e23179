"""Epochs as files in a folder, the default.

``<root>/<session>/<token>/<seq>-<epoch id>/`` holds ``data.bin`` and ``manifest.json``. An
epoch is written in a hidden folder beside its place and renamed when it is complete,
durable and verified, so a folder with a proper name is always whole. The writer holds a
lock on the hidden folder: one that can be locked belongs to a dead writer.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from outlast.checkpoint_providers.base import CheckpointProvider
from outlast.checkpoint_providers.locations import Location, session_directory
from outlast.checkpoint_providers.manifest import (
    DATA_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST,
    Manifest,
)
from outlast.checkpoint_providers.reader import EpochReader, open_manifest
from outlast.checkpoint_providers.snapshot import StoredEpoch
from outlast.checkpoint_providers.stages import Stage, StageHook, StagePoint
from outlast.checkpoint_providers.storage import (
    Flusher,
    create_file,
    lock,
    make_directories,
    open_below,
    open_file,
    read_all,
    storage_errors,
    sync_directory,
    write_all,
)
from outlast.checkpoint_providers.writer import EpochWriter
from outlast.errors import CheckpointCorrupt, CheckpointError, ConfigError

logger = logging.getLogger(__name__)

#: Start of the names of folders that are being written or removed.
_HIDDEN: Final = "."
#: What opening answers when something is missing or is not what it must be.
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
#: What a full disk answers: its epochs can still be read, and room may be made.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DirectoryProvider(CheckpointProvider):
    """Keeps epochs below a folder of a local or shared file system."""

    name = "directory"

    def __init__(self, root: Path) -> None:
        super().__init__()
        #: Absolute; a link to the folder is followed once, here.
        self.root = root.expanduser().resolve()

    @classmethod
    def from_spec(cls, argument: str, state_directory: Path | None) -> Self:
        """Return the provider of the folder ``argument``, or of ``checkpoints`` among the state."""
        if argument:
            return cls(Path(argument))
        if state_directory is None:
            raise ConfigError("the directory provider needs a folder: directory:/path")
        return cls(state_directory / "checkpoints")

    @property
    def durable(self) -> bool:
        """True: epochs survive the process and the host's restart."""
        return True

    def check(self) -> None:
        """Make the folder if it is not there yet, and a file in it."""
        probe = self.root / f"{_HIDDEN}probe.{secrets.token_hex(4)}"
        try:
            make_directories(self.root)
            os.close(create_file(probe))
            probe.unlink()
        except OSError as error:
            if error.errno in _FULL:
                logger.warning("No checkpoint can be stored below %s: %s", self.root, error)
                return
            raise ConfigError(
                f"checkpoints cannot be stored below {self.root}: {error.strerror}: "
                f"{str(error.filename)!r}; let this user write there, or name another folder "
                "with --provider directory:FOLDER"
            ) from error

    def open(self, location: str, digest: str | None = None) -> EpochReader:
        """Open a published epoch."""
        place = Location.parse(location)
        folder = self._folder(place)
        with storage_errors("cannot read", str(folder)), ExitStack() as opened:
            try:
                below = (place.session, place.token_directory, place.name)
                descriptor = open_below(self.root, *below)
                opened.callback(os.close, descriptor)
                return _open(descriptor, folder, place, digest, self.stage_hook)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise
                raise CheckpointCorrupt(
                    f"no complete epoch at {folder}: {error.filename}: {error.strerror}",
                    path=str(folder),
                ) from error

    def list(self, session_id: str) -> list[StoredEpoch]:
        """Return the published epochs of a session, oldest first."""
        session = session_directory(session_id)
        stored = []
        with storage_errors("cannot list", str(self.root / session)):
            for place in sorted(self._published(session)):
                with suppress(FileNotFoundError):  # removed meanwhile
                    size = (self._folder(place) / MANIFEST_FILE).stat().st_size
                    try:
                        with self.open(str(place)) as reader:
                            stored.append(StoredEpoch.of(place, reader.manifest, size))
                    except CheckpointError as error:
                        logger.warning("An epoch cannot be listed: %s", error)
        return stored

    def delete(self, location: str) -> None:
        """Remove a published epoch; does nothing if there is none."""
        place = Location.parse(location)
        with (
            self._turn(place.session),
            storage_errors("cannot delete", str(self._folder(place))),
        ):
            self._remove(place)
            _remove_if_empty(self._folder(place).parent)
            _remove_if_empty(self._folder(place).parent.parent)

    def clean(self, session_id: str, keep: AbstractSet[str]) -> tuple[str, ...]:
        """Remove what dead writers left, and epochs older than the newest kept one."""
        session = session_directory(session_id)
        kept = {Location.parse(location) for location in keep}
        with (
            self._turn(session),
            storage_errors("cannot clean", str(self.root / session)),
        ):
            dead = [hidden for hidden in self._hidden(session) if _remove_if_dead(hidden)]
            removed = [str(hidden.relative_to(self.root)) for hidden in dead]
            newest = max(kept, default=None)
            for place in sorted(self._published(session) - kept):
                if newest is not None and place < newest:
                    self._remove(place)
                    removed.append(str(place))
            for folder in self._token_folders(session):
                if newest is not None and folder.name < newest.token_directory:
                    _remove_if_empty(folder)
        return tuple(removed)

    def _begin(self, location: Location, size: int) -> EpochWriter:
        return _DirectoryWriter(self, location)

    def _where(self, location: Location) -> str:
        return str(self._folder(location))

    def _folder(self, place: Location) -> Path:
        return self.root / place.session / place.token_directory / place.name

    def _published(self, session: str) -> set[Location]:
        found = set()
        for folder in self._entries(session):
            with suppress(CheckpointError):  # not named by us
                found.add(Location.parse(str(folder.relative_to(self.root))))
        return found

    def _hidden(self, session: str) -> tuple[Path, ...]:
        return tuple(e for e in self._entries(session) if e.name.startswith(_HIDDEN))

    def _entries(self, session: str) -> Iterator[Path]:
        for folder in self._token_folders(session):
            with suppress(FileNotFoundError):
                yield from folder.iterdir()

    def _token_folders(self, session: str) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            for folder in (self.root / session).iterdir():
                if folder.is_dir() and not folder.is_symlink():
                    yield folder

    def _remove(self, place: Location) -> None:
        """Remove an epoch so that a crash on the way leaves no half of it to be seen."""
        folder = self._folder(place)
        doomed = _hidden_beside(folder)
        with suppress(FileNotFoundError):
            os.close(open_below(self.root, place.session, place.token_directory))
            folder.rename(doomed)
            sync_directory(folder.parent)
            _remove_tree(doomed)


class _DirectoryWriter(EpochWriter):
    def __init__(self, provider: DirectoryProvider, location: Location) -> None:
        self._location = location
        self._final = provider._folder(location)
        self._closing = ExitStack()
        make_directories(self._final.parent)
        # A link in place of a folder of ours would lead the data elsewhere.
        os.close(open_below(provider.root, location.session, location.token_directory))
        if os.path.lexists(self._final):
            raise CheckpointError(f"{self._final} exists already", path=str(self._final))
        self.folder: Path = _hidden_beside(self._final)
        self.folder.mkdir(mode=0o700)
        try:
            self._lock()
            self._data = create_file(self.folder / DATA_FILE)
            self._closing.callback(os.close, self._data)
            self._flusher = Flusher(self._data)
            self._closing.callback(self._flusher.close)
        except BaseException:
            self.discard()
            raise

    def write(self, views: Sequence[memoryview]) -> None:
        write_all(self._data, views)
        self._flusher.wrote(sum(map(len, views)))

    def sync(self) -> None:
        self._flusher.wait()
        os.fsync(self._data)

    def put_manifest(self, raw: bytes) -> None:
        descriptor = create_file(self.folder / MANIFEST_FILE)
        try:
            write_all(descriptor, [memoryview(raw)])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self.folder)

    def reader(self) -> EpochReader:
        return _open(self._descriptor, self.folder, self._location, None, None)

    def publish(self) -> None:
        # Renaming refuses a folder that has content; epochs always have.
        self.folder.rename(self._final)
        self.folder = self._final
        sync_directory(self._final.parent)
        self._closing.close()

    def discard(self) -> None:
        try:
            if self.folder == self._final:
                self.folder = self._final.rename(_hidden_beside(self._final))
            _remove_tree(self.folder)
        except OSError as error:
            logger.warning("A failed checkpoint stays until the next clean: %s", error)
        finally:
            with suppress(OSError):
                self._closing.close()

    def _lock(self) -> None:
        self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._closing.callback(os.close, self._descriptor)
        if not lock(self._descriptor):
            raise CheckpointError(f"{self.folder} is being removed by another process")


class _DirectoryReader(EpochReader):
    def __init__(
        self, manifest: Manifest, folder: Path, descriptor: int, hook: StageHook | None
    ) -> None:
        super().__init__(manifest, str(folder))
        self._folder = folder
        self._descriptor: int | None = descriptor
        self._hook = hook

    def _read_at(self, offset: int, view: memoryview) -> int:
        if self._descriptor is None:
            raise CheckpointError(f"{self.source} was closed")
        if self._hook is not None:
            self._hook(StagePoint(Stage.READ, offset, self._folder))
        return read_all(self._descriptor, view, offset)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _open(
    descriptor: int, folder: Path, place: Location, digest: str | None, hook: StageHook | None
) -> EpochReader:
    raw = _read_manifest(descriptor, folder)
    with ExitStack() as undo:
        data = open_file(DATA_FILE, descriptor)
        undo.callback(os.close, data)
        size = os.fstat(data).st_size
        manifest = open_manifest(raw, str(folder), place, digest, size)
        reader = _DirectoryReader(manifest, folder, data, hook)
        undo.pop_all()
    return reader


def _read_manifest(folder_descriptor: int, folder: Path) -> bytes:
    descriptor = open_file(MANIFEST_FILE, folder_descriptor)
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_MANIFEST:
            raise CheckpointCorrupt(
                f"{folder / MANIFEST_FILE} has {size} bytes, more than {MAX_MANIFEST}",
                path=str(folder / MANIFEST_FILE),
                field="manifest",
            )
        buffer = bytearray(size)
        count = read_all(descriptor, memoryview(buffer), 0)
        return bytes(buffer[:count])
    finally:
        os.close(descriptor)


def _hidden_beside(folder: Path) -> Path:
    return folder.with_name(f"{_HIDDEN}{folder.name}.{secrets.token_hex(4)}")


def _remove_if_dead(folder: Path) -> bool:
    """Remove a hidden folder unless its writer lives; return whether it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    try:
        if not lock(descriptor):
            return False
        _remove_tree(folder)
        return True
    finally:
        os.close(descriptor)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, *_NOT_THERE):
            raise


def _remove_tree(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
        sync_directory(folder.parent)
