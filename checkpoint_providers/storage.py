"""Files that survive a power cut, and errors that say what the storage refused."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from outlast.errors import CheckpointError

#: Bytes that may be written before writing them out begins.
FLUSH_SIZE: Final = 64 << 20  # 64 MiB
#: File systems that know no locks answer so.
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def storage_errors(name: str, path: str, needed: int = 0) -> Iterator[None]:
    """Turn an ``OSError`` into a `CheckpointError` that says what was to be done where."""
    try:
        yield
    except OSError as error:
        wanted = f" ({needed} bytes needed)" if needed else ""
        raise CheckpointError(
            f"{name} {path}{wanted}: {error.strerror or error} (errno {error.errno})",
            path=path,
            errno=error.errno,
            needed=needed,
        ) from error


class Flusher:
    """Has a growing file written out in the background.

    Without it gigabytes would wait for the sync at the end, which nothing can cancel.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-flush")
        self._running: Future[None] | None = None
        self._waiting = 0

    def wrote(self, count: int) -> None:
        """Note ``count`` new bytes; wait if the storage is two `FLUSH_SIZE` behind."""
        self._waiting += count
        if self._waiting >= FLUSH_SIZE:
            self.wait()
            self._running = self._pool.submit(os.fdatasync, self._descriptor)
            self._waiting = 0

    def wait(self) -> None:
        """Wait for what runs, and raise what it met."""
        if self._running is not None:
            self._running.result()

    def close(self) -> None:
        """Stop; the descriptor is not used afterwards."""
        self._pool.shutdown(wait=True)


def make_directories(path: Path) -> None:
    """Make a folder for this user alone, with its parents, each durably entered in its own."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path) -> int:
    """Return the descriptor of a new file for this user alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def write_all(descriptor: int, views: Sequence[memoryview]) -> None:
    """Append all of ``views``."""
    batch = os.sysconf("SC_IOV_MAX")
    for start in range(0, len(views), batch):
        part = list(views[start : start + batch])
        while part:
            count = os.writev(descriptor, part)
            while part and count >= len(part[0]):
                count -= len(part.pop(0))
            if part:
                part[0] = part[0][count:]


def read_all(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset`` on; return the bytes there were."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def open_below(root: Path, *names: str) -> int:
    """Return a descriptor of the folder ``root/names[0]/...``; follow no link below ``root``."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    for name in names:
        try:
            below = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def open_file(name: str, folder: int) -> int:
    """Return a descriptor of the regular file ``name`` in the folder of descriptor ``folder``.

    Raises
    ------
    OSError
        It cannot be opened; ``ELOOP`` if it is a link, ``EINVAL`` if it is no plain file.
    """
    # O_NONBLOCK: a pipe put in its place must not hang the reader.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return descriptor


def lock(descriptor: int) -> bool:
    """Lock a file or folder until its descriptor is closed; False if another holds it.

    Where the file system knows no locks, this is True: whoever may write here is alone.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
