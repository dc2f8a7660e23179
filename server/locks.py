"""Lifetime locks: a held `flock` is the proof that its process lives.

The kernel frees the lock when the last descriptor of a dead process goes, however it
died, so nobody waits for a lease of the own host and no recycled pid is believed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from outlast.errors import RestoreFailed

#: Name of the lock that the one server holds which is about to take another's place.
TAKE_OVER = "take-over.lock"
#: How long a dying owner is waited for before it is killed.
PATIENCE = 2.0  # seconds


class LifetimeLock:
    """An exclusive lock on a file, held until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it, and write our pid into the file."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        return True

    def acquire(self, timeout: float = PATIENCE) -> bool:
        """Take the lock within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.try_acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def release(self) -> None:
        """Give the lock up before the process ends, and close its file."""
        os.close(self._fd)

    def owner(self) -> int:
        """Return the pid that the holder wrote, 0 if unknown."""
        text = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0

    def evict(self) -> None:
        """Kill the process that holds the lock and take it.

        Raises
        ------
        RestoreFailed
            The holder cannot be found or does not go.
        """
        if self.acquire():
            return
        pid = self.owner()
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise RestoreFailed(f"the holder of {self.path} cannot be found") from error
        try:
            # Not a recycled pid: the lock is still held while we hold the pidfd.
            if not self.try_acquire():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                if not self.acquire():
                    raise RestoreFailed(f"process {pid} holds {self.path} and does not go")
        finally:
            os.close(pidfd)


def holder_of(path: Path) -> int:
    """Return the process that holds a lock; 0 if nobody does, or there is no such file."""
    if not path.exists():
        return 0
    lock = LifetimeLock(path)
    try:
        return 0 if lock.try_acquire() else lock.owner()
    finally:
        lock.release()
