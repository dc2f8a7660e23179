"""Copies to pinned memory that the program did not wait for, until their bytes are there.

The server sends the bytes of a copy ahead of every answer that tells that it is done, and they
are written in that order: whoever was told so finds them. What the program does with the
memory before that is waited for here: copies from it, freeing it, and what the program may
take for a wait because CUDA waits in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from outlast.cuda_types import CUstream_flags
from outlast.shim.linkage import Landing
from outlast.shim.objects import Context, Stream

#: Copies kept before those that ended are looked for.
FEW = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """A copy and where its bytes go."""

    landing: Landing
    start: int
    end: int
    stream: Stream


class Landings:
    """Copies under way, and the failures of those that ended.

    Parameters
    ----------
    tell
        Called when the program is about to learn that some have ended.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self._tell = tell
        self._coming: list[_Coming] = []
        self._failed: list[tuple[Context, int]] = []
        self._many = FEW
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._coming or self._failed)

    def add(self, landing: Landing, start: int, size: int, stream: Stream) -> None:
        """Note a copy that was issued now."""
        with self._lock:
            self._coming.append(_Coming(landing, start, start + size, stream))
        if len(self._coming) > self._many:
            self._sweep()
            self._many = max(FEW, 2 * len(self._coming))

    def wait_for_range(self, start: int, end: int) -> None:
        """Wait for the copies that write into a range of memory."""
        self._wait(lambda c: c.start < end and start < c.end)

    def wait_for_context(self, context: Context) -> None:
        """Wait for the copies in all streams of a context."""
        self._wait(lambda c: c.stream.context is context)

    def wait_as_legacy(self, context: Context) -> None:
        """Wait for the copies that a synchronous call in the legacy stream waits for."""
        apart = CUstream_flags.CU_STREAM_NON_BLOCKING
        self._wait(lambda c: c.stream.context is context and not c.stream.flags & apart)

    def wait(self) -> None:
        """Wait for all of them."""
        self._wait(lambda c: True)

    def take_error(self, context: Context) -> int:
        """Return, once, the CUresult of a copy of ``context`` that failed, else 0."""
        self._sweep()
        with self._lock:
            for index, (owner, result) in enumerate(self._failed):
                if owner is context:
                    del self._failed[index]
                    return result
        return 0

    def _wait(self, chosen: Callable[[_Coming], bool]) -> None:
        with self._lock:
            waited = [coming for coming in self._coming if chosen(coming)]
        for coming in waited:
            coming.landing.wait()
        if waited:
            self._tell()
        self._sweep()

    def _sweep(self) -> None:
        """Forget the copies that ended."""
        with self._lock:
            left = []
            for coming in self._coming:
                if not coming.landing.done:
                    left.append(coming)
                elif coming.landing.result:
                    self._failed.append((coming.stream.context, coming.landing.result))
            self._coming = left
