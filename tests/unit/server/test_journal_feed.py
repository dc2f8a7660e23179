"""What a worker reports is kept until it is known to be written, and sent again if it is not."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.server.journal_feed import PIECE, JournalFeed


class RecordingChannel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True

    def take(self) -> list[tuple[int, list[int]]]:
        """Return the pieces sent since the last look: number of the last entry, and seqs."""
        taken, self.sent = self.sent, []
        return [(m["last"], [e["seq"] for e in m["entries"]]) for m in taken]


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel()


@pytest.fixture
def feed(channel: RecordingChannel) -> JournalFeed:
    return JournalFeed(channel)  # type: ignore[arg-type]


def entries(*seqs: int) -> list[dict[str, Any]]:
    return [{"what": "freed", "seq": seq} for seq in seqs]


def test_what_is_written_is_not_sent_again(feed: JournalFeed, channel: RecordingChannel) -> None:
    feed.send(entries(1, 2))
    feed.send(entries(3))
    assert channel.take() == [(2, [1, 2]), (3, [3])]
    feed.written(2)
    feed.resend()
    assert channel.take() == [(3, [3])]
    feed.written(3)
    feed.resend()
    assert channel.take() == []


def test_entries_confirmed_twice_do_not_pass_for_later_ones(
    feed: JournalFeed, channel: RecordingChannel
) -> None:
    """A new gateway may get them on its own account and once more by the resending."""
    feed.send(entries(1, 2))
    feed.resend()
    feed.send(entries(3, 4))
    feed.written(2)
    feed.written(2)
    channel.take()
    feed.resend()
    assert channel.take() == [(4, [3, 4])]


def test_long_reports_travel_in_pieces_with_their_own_numbers(
    feed: JournalFeed, channel: RecordingChannel
) -> None:
    report = entries(*range(2 * PIECE + 5))
    feed.send(report)
    assert report == []
    assert [last for last, _ in channel.take()] == [PIECE, 2 * PIECE, 2 * PIECE + 5]
    feed.written(PIECE)
    feed.resend()
    assert [(last, len(seqs)) for last, seqs in channel.take()] == [
        (2 * PIECE, PIECE),
        (2 * PIECE + 5, 5),
    ]
