"""What a worker reports to the journal, kept until it is written there."""

from __future__ import annotations

from collections import deque

from outlast.server.channel import Channel, Json

#: Entries in one message to the gateway.
PIECE = 1000


class JournalFeed:
    """Sends journal entries to the gateway, and again to its successor.

    Writing the same entries twice changes nothing, so whatever is not known to be written is
    simply sent once more.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unwritten: deque[Json] = deque()

    def send(self, entries: list[Json]) -> None:
        """Report entries, emptying the list."""
        while entries:
            piece = entries[:PIECE]
            del entries[:PIECE]
            self._unwritten.extend(piece)
            self._channel.send({"kind": "journal", "entries": piece})

    def written(self, count: int) -> None:
        """Note that the oldest ``count`` entries are in the journal."""
        for _ in range(min(count, len(self._unwritten))):
            self._unwritten.popleft()

    def resend(self) -> None:
        """Report again what may not be in the journal."""
        entries = [*self._unwritten]
        self._unwritten.clear()
        self.send(entries)
