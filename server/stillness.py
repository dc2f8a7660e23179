"""Sessions too large for a copy of their memory: they stand still while that is read.

Usually an epoch is a copy of the device's memory, and calls go on while it is written. What
this host has no memory for is written first, and the calls wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outlast.available_memory import available_memory
from outlast.checkpoint_providers.snapshot import Read
from outlast.errors import CheckpointError
from outlast.session.host import HostSession

#: Share of the available memory that a copy of the device's may take.
COPY_SHARE = 3 / 4
#: A copy of this size is always made.
SMALL_COPY = 256 << 20
#: What was too much within the deadline is tried again if it is no more than this many times as
#: much as was read then.
TRY_AGAIN = 2


def room(size: int) -> int:
    """Return how many of so many bytes this host has memory to copy."""
    if size <= SMALL_COPY:
        return size
    available = available_memory()
    return size if available is None else int(available * COPY_SHARE)


class Stillness:
    """From a cut until all memory is read, or until that takes too long.

    What is read must be what was there at the cut. So once calls may change memory again,
    whatever was read last counts no more, and the save fails.

    Parameters
    ----------
    host : HostSession
        Its calls wait.
    deadline : float
        Seconds that an attached client may have to wait.
    ended : callable
        Called, by the thread that reads, when everything is read.
    """

    def __init__(self, host: HostSession, deadline: float, ended: Callable[[], None]) -> None:
        #: Everything is read.
        self.over = False
        #: Bytes read so far.
        self.read = 0
        self._host = host
        self._deadline = deadline
        self._until = float("inf")
        self._ended = ended
        self._given_up = ""
        host.still = True

    def watch(self) -> bool:
        """Return whether calls go on, because everything is read or it took too long."""
        if not self.over:
            if self._host.peer is None:
                self._until = float("inf")  # nobody waits
            elif self._until == float("inf"):
                self._until = time.monotonic() + self._deadline
            if time.monotonic() <= self._until:
                return False
            self._given_up = (
                "this host has no memory for a copy of the device's, and while the session stood "
                f"still {self.read} bytes were written within {self._deadline:g} s: give "
                "--epoch-deadline more"
            )
        self.release()
        return True

    def release(self) -> None:
        """Let calls go on."""
        self._host.still = False

    def end(self) -> None:
        """Note that everything is read."""
        self.over = True
        self._ended()

    def guard(self, read: Read) -> Read:
        """Return ``read``, failing as soon as what it reads may be something else."""

        def guarded(offset: int, target: memoryview) -> None:
            self._check()
            read(offset, target)
            self._check()
            self.read += len(target)

        return guarded

    def _check(self) -> None:
        if self._given_up:
            raise CheckpointError(self._given_up)
