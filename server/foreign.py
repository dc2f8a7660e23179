"""A process that somebody else started: a worker of the gateway before."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress

#: Nobody can ask for the exit code of a process that is not its child.
UNKNOWN = -signal.SIGKILL


class ForeignProcess:
    """What `subprocess.Popen` offers, for a process that is no child of ours.

    Parameters
    ----------
    pid : int
        A process that runs.

    Raises
    ------
    OSError
        It does not run.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: As `poll` returned it last.
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return `UNKNOWN` once the process has ended, None before."""
        if self._pidfd >= 0 and select.select([self._pidfd], [], [], 0)[0]:
            self._close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises
        ------
        subprocess.TimeoutExpired
            It does not come in time.
        """
        if self._pidfd >= 0 and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self._close()
        return UNKNOWN

    def kill(self) -> None:
        """End the process."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd, self.returncode = -1, UNKNOWN
