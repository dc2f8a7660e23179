"""The order in which a worker handles what has come: calls may have to wait, the rest never."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from outlast.server.datalink import DataLink
from outlast.server.executor import Executor
from outlast.session.client import WINDOW_BATCHES
from outlast.session.host import REPLY_CACHE_LIMIT, HostSession
from outlast.session.schema import Kind

#: Batches held back at most: twice what a client's window lets it send.
LIMIT = 2 * WINDOW_BATCHES
CALLS_KIND = bytes([Kind.CALLS])
#: Untold calls after which the client is told even while more arrive.
TELL_CALLS = 1024
#: Bytes of calls after which it is, too: a part of its window, so that it goes on sending.
TELL_BYTES = 8 << 20

#: How long a worker with nothing to do waits for a message.
PATIENCE = 0.25  # seconds
#: How long copies to the host may make no progress while calls are held back for them.
STANDSTILL = 0.05  # seconds
#: Bytes of replies that a client which takes them may owe an acknowledgement for meanwhile.
FEW = REPLY_CACHE_LIMIT // 8
#: Bytes of copies that may be under way beyond the limit then.
MOST_EXTRA = 1 << 30

#: Who sent it, and its frames.
Item = tuple[bytes, list[bytes]]


class Intake:
    """What the link has read, and the calls that wait for acknowledgements.

    While the client owes too many acknowledgements, calls are held back (in their order) and
    everything else goes on: the acknowledgement comes that way.

    Parameters
    ----------
    link, host, executor
        The worker's.
    refuse : callable
        Told of a peer that sends calls without end and acknowledges nothing.
    """

    def __init__(
        self,
        link: DataLink,
        host: HostSession,
        executor: Executor,
        refuse: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._host = host
        self._executor = executor
        self._refuse = refuse
        self._held: deque[Item] = deque()
        #: Bytes of copies beyond the limit, because those under way stand still.
        self._extra = 0
        #: Since when nothing has changed while calls are held back, and what there was then.
        self._since = 0.0
        self._seen = (0, 0)
        #: Bytes of payloads handed out since `time_to_tell` said so last.
        self._bytes = 0

    @property
    def crowded(self) -> bool:
        """Whether more is on its way to the client than it may owe."""
        return self._host.crowded(max(0, self._executor.coming - self._extra))

    @property
    def patience(self) -> float:
        """Seconds after which there may be something to handle without a new message."""
        return STANDSTILL / 2 if self._held else PATIENCE

    def time_to_tell(self) -> bool:
        """Return whether the client must hear what is done before the next message is handled."""
        due = self._host.untold >= TELL_CALLS or self._bytes >= TELL_BYTES or self.crowded
        if due:
            self._bytes = 0
        return due

    def next(self) -> Item | None:
        """Return the next message to handle, if there is one."""
        if not self._link.messages and not self._held:
            return None
        item = self._next()
        if item is not None and len(item[1]) > 1:
            self._bytes += sum(map(len, item[1][1:]))
        return item

    def _next(self) -> Item | None:
        if self._held:
            if self.crowded and not self._host.still:
                self._relent()
            if not self.crowded:
                return self._held.popleft()
        elif self._extra and not self._host.crowded(self._executor.coming):
            self._extra = 0
        while self._link.messages:
            item = self._link.messages.popleft()
            frames = item[1]
            is_calls = bool(frames) and frames[0][3:4] == CALLS_KIND
            attached = item[0] == self._host.peer
            if not (is_calls and attached and (self._held or self.crowded)):
                return item
            if len(self._held) < LIMIT:
                self._held.append(item)
            else:
                self._refuse(item[0])
        return None

    def _relent(self) -> None:
        """Let more calls through if the copies under way stand still: they may wait for one."""
        now, seen = time.monotonic(), (self._host.cached_bytes, self._executor.coming)
        if seen != self._seen:
            self._since, self._seen = now, seen
        elif now - self._since >= STANDSTILL and self._extra < MOST_EXTRA:
            self._since = now
            if self._host.cached_bytes <= FEW:  # or it is the client that stands still
                self._extra += REPLY_CACHE_LIMIT

    def clear(self) -> None:
        """Drop the calls held back: they are owed still, and sent again."""
        self._held.clear()
