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
        #: Number of the last entry that was reported.
        self._last = 0

    def send(self, entries: list[Json]) -> None:
        """Report entries, emptying the list."""
        while entries:
            piece = entries[:PIECE]
            del entries[:PIECE]
            self._unwritten.extend(piece)
            self._last += len(piece)
            self._send(piece, self._last)

    def written(self, last: int) -> None:
        """Note that the entries up to number ``last`` are in the journal."""
        while self._unwritten and self._last - len(self._unwritten) < last:
            self._unwritten.popleft()

    def resend(self) -> None:
        """Report again what may not be in the journal."""
        entries = [*self._unwritten]
        first = self._last - len(entries)
        for start in range(0, len(entries), PIECE):
            piece = entries[start : start + PIECE]
            self._send(piece, first + start + len(piece))

    def _send(self, piece: list[Json], last: int) -> None:
        # Numbered, not counted: what is sent twice is confirmed twice.
        self._channel.send({"kind": "journal", "entries": piece, "last": last})
