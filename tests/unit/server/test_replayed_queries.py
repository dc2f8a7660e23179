"""Queries after a replay: what the program has seen done must not be undone for it."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from outlast.server.drivers.base import Driver
from outlast.server.executor import NOT_READY, REPLAY_PATIENCE, Executor
from outlast.session import wire
from outlast.session.handles import HandleKind
from outlast.session.host import HostSession, State
from outlast.session.operations import Op

STREAM, EVENT = 0x100, 0x200


class SlowDevice:
    """A device whose work is done when the test says so."""

    def __init__(self) -> None:
        self.issued = 0
        self.finished = 0
        self.tag = 0

    def fault(self) -> None:
        """It never fails."""

    def ticket(self, stream: int | None = None) -> int:
        """All work so far."""
        return self.issued

    def event_ticket(self, event: int) -> int:
        """The latest record of any event."""
        return self.issued

    def done(self, ticket: int) -> bool:
        return ticket <= self.finished

    def watch(self, ticket: int) -> None:
        """Nobody polls here."""

    def cuMemsetD32Async(self, *args: Any) -> tuple[int]:
        self.issued += 1
        return (0,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[int, float]:
        return (0, 2.5) if self.done(self.issued) else (NOT_READY, 0.0)


@pytest.fixture
def device() -> SlowDevice:
    return SlowDevice()


@pytest.fixture
def executor(device: SlowDevice) -> Executor:
    executor = Executor(cast(Driver, device), HostSession())
    executor.handles.real[HandleKind.STREAM][STREAM] = STREAM
    executor.handles.real[HandleKind.EVENT][EVENT] = EVENT
    executor.host.peer = b"client"
    return executor


WORK = wire.pack_record(Op.MEMSET, 0x1000, STREAM, 1, 0, 4, 0)


def replay(executor: Executor, calls: int) -> None:
    """Apply that many calls that the client had sent before."""
    executor.host.state = State.REPLAYING
    executor.host._replay_to = calls
    executor.run(1, calls, 0, WORK * calls, [])
    assert executor.host.state is State.RUNNING


def ask(executor: Executor, op: Op, *args: int) -> None:
    executor.run(executor.host.applied + 1, 0, 0, wire.pack_record(op, 1, *args), [])


def answers(executor: Executor) -> list[tuple[int, bytes]]:
    executor.settle()
    frames = executor.host.take_replies(idle=False)
    if frames is None:
        return []
    message = wire.parse_message([bytes(frame) for frame in frames])
    stream, *payloads = message.frames
    return [(r.result, bytes(r.data)) for r in wire.iter_replies(bytes(stream), payloads)]


QUERIES = [(Op.EVENT_QUERY, (EVENT,)), (Op.STREAM_QUERY, (STREAM,))]


@pytest.mark.parametrize(("op", "args"), QUERIES)
def test_unfinished_work_is_not_ready(executor: Executor, op: Op, args: tuple[int, ...]) -> None:
    executor.run(1, 1, 0, WORK, [])

    ask(executor, op, *args)

    assert answers(executor) == [(NOT_READY, b"")]


@pytest.mark.parametrize(("op", "args"), QUERIES)
def test_replayed_work_is_waited_for_because_it_may_have_been_seen_done(
    executor: Executor, device: SlowDevice, op: Op, args: tuple[int, ...]
) -> None:
    replay(executor, 3)

    ask(executor, op, *args)

    assert answers(executor) == []
    device.finished = device.issued
    assert answers(executor) == [(0, b"")]


def test_a_query_among_replayed_calls_waits_too(executor: Executor, device: SlowDevice) -> None:
    executor.host.state = State.REPLAYING
    executor.host._replay_to = 2
    executor.run(1, 2, 0, WORK + wire.pack_record(Op.EVENT_QUERY, 1, EVENT) + WORK, [])

    assert answers(executor) == []
    device.finished = 1
    assert answers(executor) == [(0, b"")]


def test_work_after_the_replay_is_not_waited_for(executor: Executor) -> None:
    replay(executor, 3)
    executor.run(4, 1, 0, WORK, [])

    ask(executor, Op.STREAM_QUERY, STREAM)

    assert answers(executor) == [(NOT_READY, b"")]


def test_elapsed_time_of_replayed_records_is_waited_for(
    executor: Executor, device: SlowDevice
) -> None:
    replay(executor, 3)

    ask(executor, Op.EVENT_ELAPSED, EVENT, EVENT)

    assert answers(executor) == []
    device.finished = device.issued
    assert answers(executor) == [(0, struct.pack("<f", 2.5))]


def test_replayed_work_that_waits_for_the_program_is_not_waited_for_for_ever(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("outlast.server.executor.time.monotonic", lambda: now)
    replay(executor, 3)
    ask(executor, Op.STREAM_QUERY, STREAM)
    assert answers(executor) == []

    now += REPLAY_PATIENCE + 0.1

    assert answers(executor) == [(NOT_READY, b"")]
