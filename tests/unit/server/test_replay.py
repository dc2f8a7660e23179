"""The order that a program gave its calls by waiting is kept where nothing waits."""

from __future__ import annotations

import pytest

from outlast.server.replay import Replay
from outlast.session.handles import HandleKind, HandleTable
from outlast.session.operations import Op

STREAM, EVENT = 0x700, 0x800
STREAM_TICKET, EVENT_TICKET, EVERYTHING = 3, 5, 9
#: What a record names, and the ticket of that.
NAMED = [
    ((Op.STREAM_SYNC, STREAM), STREAM_TICKET),
    ((Op.EVENT_SYNC, EVENT), EVENT_TICKET),
    ((Op.CTX_SYNC, 0), EVERYTHING),
    ((Op.STREAM_SYNC, STREAM + 16), EVERYTHING),
    ((Op.EVENT_SYNC, EVENT + 16), EVERYTHING),
]


class Device:
    """Names work by numbers and notes what is ordered."""

    def __init__(self) -> None:
        self.finished: set[int] = {0}
        self.order: list[int] = []

    def ticket(self, stream: int | None = None) -> int:
        return EVERYTHING if stream is None else STREAM_TICKET

    def event_ticket(self, event: int) -> int:
        return EVENT_TICKET

    def done(self, ticket: int) -> bool:
        return ticket in self.finished

    def order_after(self, ticket: int) -> None:
        self.order.append(ticket)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def replay(device: Device) -> Replay:
    handles = HandleTable()
    handles.real[HandleKind.STREAM][STREAM] = 1
    handles.real[HandleKind.EVENT][EVENT] = 2
    return Replay(device, handles)  # type: ignore[arg-type]


@pytest.mark.parametrize(("named", "ticket"), NAMED)
def test_what_follows_a_wait_in_a_replay_runs_behind_that_work(replay, device, named, ticket):
    replay.begin_batch(True)
    replay.keep_order(Op.WAITED, 0, *named)
    assert device.order == [ticket]


@pytest.mark.parametrize(("named", "ticket"), NAMED)
def test_a_wait_holds_what_was_there_when_it_began(replay, device, named, ticket):
    replay.begin_batch(True)
    replay.keep_order(Op.MARKED, 7, *named)
    device.event_ticket = lambda event: EVENT_TICKET + 10
    device.ticket = lambda stream=None: EVERYTHING + 10
    replay.keep_order(Op.WAITED, 7, *named)
    assert device.order == [ticket]


def test_work_that_is_done_orders_nothing(replay, device):
    replay.begin_batch(True)
    device.finished.add(STREAM_TICKET)
    replay.keep_order(Op.WAITED, 0, Op.STREAM_SYNC, STREAM)
    assert device.order == []


def test_the_first_calls_behind_a_replay_keep_the_order_too(replay, device):
    replay.begin_batch(True)
    replay.end_batch()
    replay.keep_order(Op.WAITED, 0, Op.STREAM_SYNC, STREAM)
    assert device.order == [STREAM_TICKET]


def test_without_replayed_work_under_way_waits_are_over(replay, device):
    replay.keep_order(Op.WAITED, 0, Op.STREAM_SYNC, STREAM)
    replay.begin_batch(True)
    replay.end_batch()
    device.finished.add(EVERYTHING)
    replay.keep_order(Op.MARKED, 7, Op.STREAM_SYNC, STREAM)
    replay.keep_order(Op.WAITED, 7, Op.STREAM_SYNC, STREAM)
    assert device.order == []


def test_the_end_of_what_no_replay_has_marked_orders_nothing(replay, device):
    replay.begin_batch(True)
    replay.keep_order(Op.WAITED, 7, Op.STREAM_SYNC, STREAM)
    assert device.order == []
