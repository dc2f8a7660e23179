"""The worker's state machine: who may speak, replies and epochs."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import AuthenticationFailed, ProtocolError, SessionFenced
from outlast.session import host as host_module
from outlast.session import wire
from outlast.session.host import HostSession, State
from outlast.session.ids import digest
from outlast.session.schema import INLINE_LIMIT, Kind, ReplyKind
from outlast.session.wire import Message, Reply

SECRET = bytes(32)
PEER, OTHER = b"peer", b"other"


def attach_message(generation: int = 1, **fields: Any) -> Message:
    values: dict[str, Any] = {
        "generation": generation,
        "secret": SECRET,
        "replay_to": 0,
        "acked": 0,
        "ranges": [],
        "deferred": [],
        **fields,
    }
    return wire.parse_message([wire.pack_message(Kind.ATTACH, **values)])


def attached_host(generation: int = 1, **fields: Any) -> HostSession:
    host = HostSession()
    attach(host, generation, **fields)
    return host


def attach(host: HostSession, generation: int, **fields: Any) -> Message:
    host.fence(generation, digest(SECRET))
    host.attach(PEER, attach_message(generation, **fields))
    return wire.parse_message(host.attached({}))


def outcome(seq: int, data: bytes = b"") -> Reply:
    return Reply(ReplyKind.OUTCOME, seq, 0, seq * 16, data)


def failure(seq: int) -> Reply:
    return Reply(ReplyKind.DEFERRED, seq, 2, 0x600)


def sent(host: HostSession, idle: bool = True) -> list[tuple[ReplyKind, int]]:
    """Kind and number of every reply that is sent now."""
    result = []
    while (frames := host.take_replies(idle)) is not None:
        message = wire.parse_message(frames)
        replies = wire.iter_replies(message.frames[0], message.frames[1:])
        result.extend((reply.kind, reply.number) for reply in replies)
    return result


# -- who may speak -------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [0, 2, 3])
def test_a_generation_that_is_not_higher_is_refused(generation: int):
    host = HostSession()
    host.fence(3, digest(SECRET))
    with pytest.raises(SessionFenced):
        host.fence(generation, digest(SECRET))
    assert host.generation == 3


def test_a_fence_ends_the_attachment_before_it():
    host = attached_host(1)
    host.fence(2, digest(SECRET))
    with pytest.raises(SessionFenced):
        host.check(PEER, 1)
    with pytest.raises(SessionFenced):
        host.attach(PEER, attach_message(1))


def test_a_wrong_secret_does_not_attach():
    host = HostSession()
    host.fence(1, digest(b"x" * 32))
    with pytest.raises(AuthenticationFailed):
        host.attach(PEER, attach_message(1))
    assert host.peer is None


def test_a_secret_serves_once():
    host = attached_host()
    host.lost()
    with pytest.raises(AuthenticationFailed):
        host.attach(PEER, attach_message(1))


def test_a_second_connection_cannot_attach_to_the_same_generation():
    host = attached_host()
    with pytest.raises(SessionFenced):
        host.attach(OTHER, attach_message(1))
    assert host.peer == PEER


@pytest.mark.parametrize(("peer", "generation"), [(OTHER, 1), (PEER, 0), (PEER, 2)])
def test_only_the_attached_connection_may_speak(peer: bytes, generation: int):
    host = attached_host()
    host.check(PEER, 1)
    with pytest.raises(SessionFenced):
        host.check(peer, generation)


# -- calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "count", "skip"), [(6, 3, 0), (5, 3, 1), (3, 3, 3), (1, 2, 2), (9, 0, 0)]
)
def test_repeats_are_skipped(first: int, count: int, skip: int):
    host = HostSession()
    host.advance(5)
    assert host.admit(first, count) == skip


def test_a_gap_is_refused():
    host = HostSession()
    host.advance(5)
    with pytest.raises(ProtocolError, match="call 6 is next, the batch begins at 7"):
        host.admit(7, 1)


def test_it_replays_until_the_last_call_that_was_sent_before():
    host = attached_host(replay_to=2)
    assert host.state is State.REPLAYING
    host.advance(1)
    assert host.state is State.REPLAYING
    host.advance(2)
    assert host.state is State.RUNNING


def test_nothing_is_replayed_when_everything_is_applied():
    host = HostSession()
    host.advance(2)
    attach(host, 1, replay_to=2)
    assert host.state is State.RUNNING


def test_a_draining_worker_stays_so():
    host = HostSession()
    host.state = State.DRAINING
    attach(host, 1, replay_to=2)
    assert host.state is State.DRAINING


# -- replies -------------------------------------------------------------------------------


def test_replies_are_sent_in_their_order():
    host = attached_host()
    for reply in (outcome(2), failure(1), Reply(ReplyKind.ANSWER, 9), outcome(3)):
        host.reply(reply)
    assert sent(host) == [
        (ReplyKind.OUTCOME, 2),
        (ReplyKind.DEFERRED, 1),
        (ReplyKind.ANSWER, 9),
        (ReplyKind.OUTCOME, 3),
    ]
    assert sent(host) == []


def test_what_is_not_acknowledged_is_sent_again_at_the_next_attachment():
    host = attached_host()
    for reply in (outcome(1), failure(2), Reply(ReplyKind.ANSWER, 9), outcome(3)):
        host.reply(reply)
    sent(host)
    host.lost()
    host.reply(outcome(4))
    attach(host, 2, acked=1)
    assert sent(host) == [
        (ReplyKind.DEFERRED, 2),
        (ReplyKind.OUTCOME, 3),
        (ReplyKind.OUTCOME, 4),
    ]


def test_ranges_and_failures_are_acknowledged_apart():
    host = attached_host()
    for seq in range(1, 7):
        host.reply(outcome(seq))
    host.reply(failure(7))
    host.reply(failure(8))
    ack = wire.pack_message(
        Kind.ACK, generation=1, acked=1, ranges=[(3, 4), (6, 6)], deferred=[8, 99]
    )
    host.acknowledge_message(wire.parse_message([ack]))
    owed = [(reply.kind, reply.number) for reply in host.cut().replies]
    assert owed == [(ReplyKind.OUTCOME, 2), (ReplyKind.OUTCOME, 5), (ReplyKind.DEFERRED, 7)]


def test_a_cumulative_acknowledgement_leaves_late_failures():
    host = attached_host()
    host.reply(outcome(1))
    host.reply(failure(2))
    host.acknowledge(5)
    assert [reply.number for reply in host.cut().replies] == [2]


def test_cached_bytes_are_those_not_acknowledged():
    host = attached_host()
    host.reply(outcome(1, b"x" * 10))
    host.reply(outcome(2, b"x" * 20))
    assert host.cached_bytes == 30
    host.acknowledge(1)
    assert host.cached_bytes == 20
    host.acknowledge(2)
    assert host.cached_bytes == 0


def test_too_many_reply_bytes_crowd_the_worker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_module, "REPLY_CACHE_LIMIT", 15)
    host = attached_host()
    host.reply(outcome(1, b"x" * 15))
    assert not host.crowded(coming=0)
    assert host.crowded(coming=1)
    host.reply(outcome(2, b"x"))
    assert host.crowded(coming=0)
    host.acknowledge(1)
    assert not host.crowded(coming=0)


def test_long_data_travels_as_frames_of_its_own():
    host = attached_host()
    host.reply(outcome(1, b"a" * (INLINE_LIMIT + 1)))
    host.reply(outcome(2, b"b"))
    frames = host.take_replies(True)
    assert frames is not None
    assert len(frames) == 2
    message = wire.parse_message(frames)
    got = [bytes(r.data) for r in wire.iter_replies(message.frames[0], message.frames[1:])]
    assert got == [b"a" * (INLINE_LIMIT + 1), b"b"]


def test_one_message_holds_about_a_mebibyte():
    host = attached_host()
    for seq in range(1, 6):
        host.reply(outcome(seq, bytes(600_000)))
    sizes = []
    while (frames := host.take_replies(True)) is not None:
        sizes.append(len(frames) - 1)
    assert sizes == [2, 2, 1]


def test_an_idle_worker_tells_how_far_it_is():
    host = attached_host()
    host.advance(3)
    assert host.untold == 3
    assert host.take_replies(idle=False) is None
    frames = host.take_replies(idle=True)
    assert frames is not None
    assert wire.parse_message(frames)["applied"] == 3
    assert host.untold == 0
    assert host.take_replies(idle=True) is None


def test_nothing_is_sent_while_nobody_is_attached():
    host = HostSession()
    host.reply(outcome(1))
    host.advance(1)
    assert host.take_replies(True) is None


# -- epochs --------------------------------------------------------------------------------


def test_the_older_of_two_epochs_is_recoverable():
    host = HostSession()
    assert host.recoverable == 0
    seen = []
    for seq in (5, 10, 15):
        host.committed(seq)
        seen.append(host.recoverable)
    assert seen == [0, 5, 10]
    assert host.epochs == [10, 15]


def test_an_epoch_at_the_same_place_counts_once():
    host = HostSession()
    host.committed(5)
    host.committed(5)
    assert host.recoverable == 0


def test_a_cut_holds_what_is_owed():
    host = attached_host()
    host.reply(outcome(2))
    host.reply(failure(1))
    host.reply(Reply(ReplyKind.ANSWER, 1))
    host.advance(3)
    cut = host.cut()
    assert cut.seq == 3
    assert [reply.number for reply in cut.replies] == [1, 2]


def test_a_restored_worker_owes_what_the_epoch_owed():
    host = HostSession()
    host.reply(outcome(8))
    host.reply(failure(9))
    host.restored(10, [2, 5])
    assert host.recoverable == 5
    attached = attach(host, 1, replay_to=12)
    assert (attached["applied"], attached["restored_from"]) == (10, 10)
    assert host.state is State.REPLAYING
    assert sent(host) == [(ReplyKind.OUTCOME, 8), (ReplyKind.DEFERRED, 9)]


def test_a_restore_is_told_once():
    host = HostSession()
    host.restored(10, [])
    assert attach(host, 1)["restored_from"] == 10
    assert attach(host, 2)["restored_from"] == 0


def test_a_single_restored_epoch_makes_nothing_recoverable():
    host = HostSession()
    host.restored(10, [])
    assert host.recoverable == 0


def test_an_adopted_session_owes_nothing_and_begins_at_its_epoch():
    host = attached_host(replay_to=9)
    host.reply(outcome(1, b"x"))
    host.reply(failure(2))
    host.advance(5)
    host.lost()
    host.committed(5)
    host.adopted()
    assert host.cut().replies == ()
    assert host.cached_bytes == 0
    assert host.state is State.RUNNING
    assert host.recoverable == 5
    host.committed(8)
    assert host.recoverable == 5
    host.committed(9)
    assert host.recoverable == 8
