"""The server that uses a state folder now, as one that is to take its place knows it."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from outlast.errors import TakeOverFailed
from outlast.server.locks import LifetimeLock


class Incumbent:
    """The process that holds the lock of a state folder, and no other.

    Its number comes from the lock's file, where a number may be out of date: until whoever has
    the lock writes its own, and for ever if it cannot. Signals go to what a descriptor stands for,
    after the kernel has named that process as the lock's holder.

    Parameters
    ----------
    lock : LifetimeLock
        Somebody else holds it.

    Raises
    ------
    TakeOverFailed
        Who holds it cannot be told for certain.
    """

    def __init__(self, lock: LifetimeLock) -> None:
        self.pid = lock.owner()
        try:
            self._pidfd = os.pidfd_open(self.pid) if self.pid else -1
        except OSError:
            self._pidfd = -1
        # In this order: while the descriptor's process lives, nobody else has its number.
        if self._pidfd < 0 or not holds(self.pid, lock.path) or self.wait(0.0):
            self.close()
            raise TakeOverFailed(
                f"somebody uses the state folder {lock.path.parent}, but whether that is process "
                f"{self.pid} cannot be told: try again, or stop that server and start this one"
            )

    def tell(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended.

        Raises
        ------
        TakeOverFailed
            This user may not.
        """
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass
        except OSError as error:
            raise TakeOverFailed(
                f"server process {self.pid} cannot be told to make way: {error.strerror}"
            ) from error

    def wait(self, timeout: float) -> bool:
        """Return whether the process has ended, after ``timeout`` seconds at most."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def close(self) -> None:
        """Let go of the process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def holds(pid: int, path: Path) -> bool:
    """Return whether a process holds the lock (`flock`) on a file, as the kernel says."""
    with suppress(OSError):
        wanted = path.stat()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found = entry.stat()
                if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
                    continue
                # It lists what is locked by way of this descriptor, whoever waits for it.
                info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
                if any(line.startswith("lock:") and "FLOCK" in line for line in info):
                    return True
    return False
