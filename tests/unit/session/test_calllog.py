"""The call log: truncation, replay, spilling and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outlast.errors import LogFull
from outlast.session.calllog import Batch, CallLog, Outcome, Payload
from outlast.session.operations import Op
from outlast.session.wire import CallStream, pack_record

CALL = pack_record(Op.EVENT_DESTROY, 1)
BIND = pack_record(Op.BIND, 1, 0)


class Write:
    """Something on its way to a `ListSpill`."""

    def __init__(self, parts: Sequence[Payload]) -> None:
        self.data = b"".join(parts)
        self.position = 0
        self.error: LogFull | None = None
        self.done = False


class ListSpill:
    """Keeps what is spilled in memory; refuses when told that the disk is full.

    With ``held`` nothing is done before `finish` is called.
    """

    def __init__(self, held: bool = False) -> None:
        self.data = b""
        self.full = False
        self.held = held
        self.resets = 0
        self.begun: list[Write] = []

    def write(self, parts: Sequence[Payload]) -> Write:
        self.begun.append(Write(parts))
        if not self.held:
            self.finish()
        return self.begun[-1] if self.begun else self.last

    def finish(self) -> None:
        """End the first write that was begun."""
        self.last = first = self.begun.pop(0)
        if self.full:
            for each in (first, *self.begun):
                each.error = LogFull("no space left on device")
                each.done = True
            self.begun.clear()
            return
        first.position = len(self.data)
        self.data += first.data
        first.done = True

    def wait(self, timeout: float) -> None:
        if self.begun:
            self.finish()

    def read(self, position: int, sizes: list[int]) -> list[bytes]:
        parts = []
        for size in sizes:
            parts.append(self.data[position : position + size])
            position += size
        return parts

    def trim(self, position: int) -> None:
        self.data = bytes(position) + self.data[position:]

    def reset(self) -> None:
        self.data = b""
        self.begun.clear()
        self.resets += 1


def batch(first: int, count: int = 1, size: int = 0) -> Batch:
    """A batch of ``count`` calls with a payload of ``size`` bytes."""
    payload = [bytes([first % 256]) * size] if size else []
    return Batch(first, count, BIND + CALL * count, payload)


def filled(*sizes: int, limit: int = 1000, spill: ListSpill | None = None) -> CallLog:
    log = CallLog(limit, 10_000, spill)
    for seq, size in enumerate(sizes, 1):
        log.append(batch(seq, size=size))
    return log


def test_batches_are_kept_until_they_are_recoverable():
    log = filled(10, 10, 10)
    log.truncate(2)
    assert log.head == 3
    assert [b.first_seq for b in log.since(1)] == [3]


def test_a_batch_is_kept_whole_while_any_call_of_it_is_needed():
    log = CallLog()
    log.append(batch(1, 3))
    log.append(batch(4, 2))
    log.truncate(4)
    assert log.head == 4
    assert [b.first_seq for b in log.since(1)] == [4]


def test_truncating_drops_bytes_and_outcomes():
    log = filled(10, 10)
    log.record(1, Outcome(0, 7))
    log.record(2, Outcome(2))
    log.truncate(1)
    assert log.outcomes == {2: Outcome(2)}
    assert log.bytes == log.memory == log.batches[0].size
    log.truncate(2)
    assert log.bytes == log.memory == 0


def test_an_outcome_before_the_log_is_not_kept():
    log = filled(10, 10)
    log.truncate(1)
    log.record(1, Outcome(0))
    assert not log.outcomes


def test_since_gives_the_batch_that_holds_the_seq():
    log = CallLog()
    log.append(batch(1, 3))
    log.append(batch(4, 2))
    assert [b.first_seq for b in log.since(3)] == [1, 4]
    assert [b.first_seq for b in log.since(4)] == [4]
    assert not list(log.since(6))


def test_replay_puts_each_known_outcome_in_front_of_its_call():
    log = CallLog()
    log.append(Batch(1, 3, BIND + CALL * 3, [b"payload"]))
    log.record(1, Outcome(0, 0x1000))
    log.record(3, Outcome(2))
    stream, *payloads = log.replay_parts(log.batches[0])
    got = [(codec.op, args) for codec, args, _ in CallStream(stream)]
    call = (Op.EVENT_DESTROY, (1,))
    assert got == [
        (Op.BIND, (1, 0)),
        (Op.OUTCOME, (1, 0, 0x1000)),
        call,
        call,
        (Op.OUTCOME, (3, 2, 0)),
        call,
    ]
    assert payloads == [b"payload"]


def test_replay_without_outcomes_sends_what_was_sent():
    log = filled(10)
    assert log.replay_parts(log.batches[0]) == log.parts(log.batches[0])


def test_a_spilled_batch_is_replayed_with_its_outcomes():
    log = filled(600, 600, spill=ListSpill())
    assert log.batches[0].parts is None
    log.record(1, Outcome(0, 5))
    stream, *payloads = log.replay_parts(log.batches[0])
    ops = [codec.op for codec, _, _ in CallStream(stream)]
    assert ops == [Op.BIND, Op.OUTCOME, Op.EVENT_DESTROY]
    assert payloads == [b"\1" * 600]


def test_memory_near_the_limit_spills_the_oldest_batches_to_have_some_room():
    log = filled(400, 400, 400, spill=ListSpill())
    assert log.memory <= 875 < log.bytes
    assert [b.parts is None for b in log.batches] == [True, True, False]
    assert [log.parts(b)[1][0] for b in log.batches] == [1, 2, 3]


def test_the_spill_is_reset_once_nothing_is_spilled():
    spill = ListSpill()
    log = filled(400, 400, 400, 400, spill=spill)
    log.truncate(1)
    assert spill.resets == 0
    log.truncate(2)
    assert spill.resets == 1
    assert log.bytes == log.memory == sum(batch.size for batch in log.batches)


def test_a_closed_log_holds_nothing_in_memory_and_on_disk():
    spill = ListSpill()
    log = filled(400, 400, 400, spill=spill)
    log.close()
    assert list(log.since(0)) == []
    assert log.bytes == log.memory == 0
    assert spill.data == b""


def test_what_is_being_spilled_is_in_memory_until_it_is_written():
    spill = ListSpill(held=True)
    log = filled(270, 270, 270, spill=spill)
    assert log.spilling
    assert log.memory == log.bytes > 875
    assert log.check_room(), "there is room for more until the limit"
    log.append(batch(4, size=270))
    assert not log.check_room()
    assert [log.parts(b)[1][0] for b in log.batches] == [1, 2, 3, 4]

    while spill.begun:
        log.wait(1.0)

    assert log.check_room()
    assert not log.spilling
    assert log.memory <= 875
    assert [log.parts(b)[1][0] for b in log.batches] == [1, 2, 3, 4]


def test_what_an_epoch_holds_meanwhile_is_not_counted_twice():
    spill = ListSpill(held=True)
    log = filled(300, 300, 300, 300, spill=spill)
    assert len(spill.begun) > 1
    spill.finish()
    log.truncate(2)
    assert log.memory == log.bytes == sum(b.size for b in log.batches)
    log.truncate(3)
    assert not log.spilling
    assert spill.resets, "nothing that is still needed is or will be in the files"
    assert log.memory == log.bytes == log.batches[0].size
    assert log.check_room()


def test_a_log_without_room_has_its_calls_wait_for_an_epoch_that_makes_some():
    log = CallLog(limit=100)
    assert log.check_room()
    log.append(batch(1, size=500))
    assert log.full
    assert not log.check_room()
    assert log.wants_epoch(1)
    assert not log.wants_epoch(1)
    log.truncate(1)
    assert not log.full
    assert log.check_room()


def test_a_log_without_room_refuses_calls_once_an_epoch_has_failed():
    log = CallLog(limit=100)
    log.append(batch(1, size=500))
    assert not log.check_room()
    assert log.wants_epoch(1)
    log.epochs.taken(0, "the server's disk is full")

    for _ in range(2):
        with pytest.raises(LogFull, match=r"hard limit is 100;.*server's disk is full") as caught:
            log.check_room()
    assert caught.value.bytes == log.bytes  # type: ignore[attr-defined]
    assert log.wants_epoch(1), "it is tried again all the same"
    log.epochs.taken(1, "")
    log.append(batch(2))
    assert not log.check_room(), "now it is worth waiting"


def test_a_log_that_one_epoch_holds_takes_a_call_so_that_another_can_make_room():
    log = CallLog(limit=100)
    log.append(batch(1, size=500))
    assert log.wants_epoch(1)
    log.epochs.taken(1, "")
    assert log.check_room(), "an epoch at the same place would be the same one"
    log.append(batch(2))
    assert not log.check_room()
    assert log.wants_epoch(2)
    log.epochs.taken(2, "")
    log.truncate(1)
    assert log.check_room()


def test_the_hard_limit_counts_what_is_spilled():
    log = CallLog(limit=100, hard_limit=1000, spill=ListSpill())
    for seq in range(1, 12):
        log.append(batch(seq, size=90))
    assert log.memory <= 100
    log.epochs.taken(0, "no")
    with pytest.raises(LogFull, match="hard limit is 1000"):
        log.check_room()


def test_a_full_disk_loses_no_batch_and_holds_the_next_call_up():
    spill = ListSpill()
    spill.full = True
    log = filled(600, 600, spill=spill)
    assert [b.first_seq for b in log.since(1)] == [1, 2]
    assert not log.check_room(), "a checkpoint can make room"
    log.epochs.taken(0, "no")
    with pytest.raises(LogFull, match="no space left"):
        log.check_room()
    spill.full = False
    assert log.check_room()
    assert log.memory <= 875
    assert [log.parts(b)[1][0] for b in log.batches] == [1, 2]


def test_an_epoch_is_asked_for_once_per_share_of_growth():
    log = CallLog(limit=1000)
    asked = []
    for seq in range(1, 11):
        log.append(batch(seq, size=100 - batch(seq).size))
        if log.wants_epoch(seq):
            asked.append(seq)
            log.epochs.taken(seq, "")
    assert log.bytes == 1000
    assert asked == [4, 8]


def test_no_epoch_is_asked_for_while_another_is_on_its_way():
    log = filled(500)
    assert log.wants_epoch(1)
    for seq in range(2, 10):
        log.append(batch(seq, size=500))
        assert not log.wants_epoch(seq)
    log.epochs.taken(0, "")  # one that was begun before it was asked for
    assert not log.wants_epoch(9)
    log.epochs.taken(1, "")
    assert log.wants_epoch(9)


def test_truncation_counts_the_growth_from_there():
    log = filled(200, 200)
    assert log.wants_epoch(2)
    log.epochs.taken(2, "")
    log.truncate(2)
    assert not log.wants_epoch(2)
    log.append(batch(3, size=300))
    assert not log.wants_epoch(3)
    log.append(batch(4, size=300))
    assert log.wants_epoch(4)


def test_a_log_that_is_tightened_spills_what_is_too_much_and_asks_for_epochs_earlier():
    log = filled(200, 200, 200, spill=ListSpill())
    assert log.wants_epoch(3)
    log.epochs.taken(3, "")
    log.tighten(400)
    log.tighten(10_000)
    assert log.limit == 400
    log.append(batch(4))
    assert log.memory <= 350
    log.append(batch(5, size=150))
    assert log.wants_epoch(5)


class LogMachine(RuleBasedStateMachine):
    """Any order of appends, truncations, outcomes and full disks keeps what is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.spill = ListSpill(held=True)
        self.log = CallLog(limit=400, hard_limit=1500, spill=self.spill)
        self.kept: dict[int, tuple[int, int]] = {}
        self.next_seq = 1

    @precondition(lambda self: not self.log.full)
    @rule(count=st.integers(1, 4), size=st.integers(0, 300))
    def append(self, count: int, size: int) -> None:
        self.log.append(batch(self.next_seq, count, size))
        self.kept[self.next_seq] = (count, size)
        self.next_seq += count

    @rule(back=st.integers(0, 8))
    def truncate(self, back: int) -> None:
        recoverable = max(0, self.next_seq - 1 - back)
        self.log.truncate(recoverable)
        self.kept = {
            first: kept for first, kept in self.kept.items() if first + kept[0] - 1 > recoverable
        }

    @precondition(lambda self: self.next_seq > 1)
    @rule(back=st.integers(1, 6))
    def record(self, back: int) -> None:
        self.log.record(max(1, self.next_seq - back), Outcome(0, back))

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.spill.full = full

    @precondition(lambda self: self.spill.begun)
    @rule()
    def written(self) -> None:
        self.spill.finish()

    @precondition(lambda self: self.log.bytes < self.log.hard_limit and not self.spill.full)
    @rule()
    def wait_for_room(self) -> None:
        with suppress(LogFull):
            self.log.check_room()  # what has failed before is told once
        while not self.log.check_room():
            self.log.wait(1.0)
        assert self.log.memory <= self.log.limit

    @rule(error=st.sampled_from(["", "no"]))
    def epoch(self, error: str) -> None:
        self.log.wants_epoch(self.next_seq - 1)
        self.log.epochs.taken(self.next_seq - 1, error)

    @invariant()
    def nothing_needed_is_missing(self) -> None:
        log = self.log
        assert [b.first_seq for b in log.since(log.head)] == list(self.kept)
        for held in log.batches:
            count, size = self.kept[held.first_seq]
            sizes = [len(part) for part in log.parts(held)]
            assert sum(sizes) == held.size
            assert sum(sizes[1:]) == size
            assert held.count == count

    @invariant()
    def sums_are_right(self) -> None:
        log = self.log
        assert log.bytes == sum(b.size for b in log.batches)
        assert log.memory == sum(b.size for b in log.batches if b.parts is not None)
        assert all(log.head <= seq for seq in log.outcomes)


TestLogMachine = LogMachine.TestCase
