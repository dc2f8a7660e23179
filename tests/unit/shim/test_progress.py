"""Whether work is done: asked of the server once, told as often as the program wants to know."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from helpers.fake_link import FakeLink

from outlast.errors import LinkClosed
from outlast.session.operations import Op
from outlast.shim import driver

DONE, NOT_READY, ILLEGAL_ADDRESS = (0,), (600,), (700,)
ASKED = (Op.EVENT_QUERY, Op.EVENT_SYNC, Op.STREAM_QUERY, Op.STREAM_SYNC)
NON_BLOCKING = 1

Query = Callable[[], tuple[int]]


@pytest.fixture
def stream(link: FakeLink, context: int) -> int:
    """A stream with work under way."""
    _, made = driver.cuStreamCreate(NON_BLOCKING)
    work(made)
    link.busy = True
    return int(made)


@pytest.fixture
def event(stream: int) -> int:
    """An event that was recorded behind that work."""
    _, made = driver.cuEventCreate(0)
    driver.cuEventRecord(made, stream)
    return int(made)


@pytest.fixture(params=["event", "stream"])
def query(request: pytest.FixtureRequest, stream: int, event: int) -> Query:
    """Ask whether the work is done, in either way."""
    if request.param == "event":
        return lambda: driver.cuEventQuery(event)
    return lambda: driver.cuStreamQuery(stream)


def work(stream: int) -> None:
    """Give a stream something to do."""
    _, memory = driver.cuMemAlloc(64)
    assert driver.cuMemsetD8Async(memory, 1, 64, stream) == DONE


def asked(link: FakeLink) -> list[Op]:
    """Return the questions that have travelled, those without an answer too."""
    return [op for op in link.ops() if op in ASKED] + [Op.EVENT_SYNC] * len(link.watches)


def test_asking_again_and_again_asks_the_server_once(link: FakeLink, query: Query) -> None:
    for _ in range(50):
        assert query() == NOT_READY
    assert len(asked(link)) == 1

    link.busy = False

    assert query() == DONE
    assert len(asked(link)) == 1


def test_what_was_done_stays_done(link: FakeLink, query: Query) -> None:
    link.busy = False
    assert query() == DONE
    link.busy = True
    before = len(asked(link))
    for _ in range(3):
        assert query() == DONE
    assert len(asked(link)) == before


def test_a_new_record_is_asked_for_anew(link: FakeLink, stream: int, event: int) -> None:
    link.busy = False
    assert driver.cuEventQuery(event) == DONE
    link.busy = True
    assert driver.cuEventRecord(event, stream) == DONE
    assert driver.cuEventQuery(event) == NOT_READY
    assert len(link.watches) == 1


def test_new_work_of_a_stream_is_asked_for_anew(link: FakeLink, stream: int) -> None:
    assert driver.cuStreamQuery(stream) == NOT_READY
    work(stream)
    assert driver.cuStreamQuery(stream) == NOT_READY
    assert len(link.watches) == 2


def test_the_end_of_an_older_record_is_not_that_of_the_newer(
    link: FakeLink, stream: int, event: int
) -> None:
    assert driver.cuEventQuery(event) == NOT_READY
    driver.cuEventRecord(event, stream)
    link.watches.pop().wait()
    assert driver.cuEventQuery(event) == NOT_READY


def test_a_stream_without_work_is_done(link: FakeLink, stream: int) -> None:
    _, idle = driver.cuStreamCreate(NON_BLOCKING)
    assert driver.cuStreamQuery(idle) == DONE
    assert asked(link) == []


def test_what_a_wait_has_shown_to_be_done_is_not_asked_for(
    link: FakeLink, stream: int, query: Query
) -> None:
    assert driver.cuStreamSynchronize(stream) == DONE
    before = len(asked(link))
    assert query() == DONE
    assert len(asked(link)) == before


def test_a_wait_for_the_context_shows_everything_to_be_done(link: FakeLink, query: Query) -> None:
    assert driver.cuCtxSynchronize() == DONE
    assert query() == DONE
    assert asked(link) == []


def test_a_later_record_in_the_same_stream_shows_the_earlier_to_be_done(
    link: FakeLink, stream: int, event: int
) -> None:
    _, later = driver.cuEventCreate(0)
    driver.cuEventRecord(later, stream)
    assert driver.cuEventSynchronize(later) == DONE
    before = len(asked(link))
    assert driver.cuEventQuery(event) == DONE
    assert len(asked(link)) == before


def test_the_server_is_asked_when_a_wait_may_have_told_that_the_work_is_done(
    link: FakeLink, query: Query
) -> None:
    """A wait for another stream, which may have waited for ours: only the server knows."""
    _, other = driver.cuStreamCreate(NON_BLOCKING)
    assert query() == NOT_READY
    assert driver.cuStreamSynchronize(other) == DONE
    assert query() == DONE
    assert asked(link)[-2] in (Op.EVENT_QUERY, Op.STREAM_QUERY)


def test_a_wait_that_told_nothing_new_is_asked_about_once(
    link: FakeLink, stream: int, event: int
) -> None:
    _, other = driver.cuStreamCreate(NON_BLOCKING)
    assert driver.cuEventQuery(event) == NOT_READY
    assert driver.cuStreamSynchronize(other) == DONE
    link.fail_next[Op.EVENT_QUERY] = 600
    for _ in range(5):
        assert driver.cuEventQuery(event) == NOT_READY
    assert len(link.of(Op.EVENT_QUERY)) == 1
    assert len(link.watches) == 1


def test_a_copy_that_arrived_may_have_told_that_the_work_is_done(
    link: FakeLink, stream: int, event: int
) -> None:
    _, memory = driver.cuMemAlloc(64)
    _, pinned = driver.cuMemAllocHost(64)
    assert driver.cuEventQuery(event) == NOT_READY
    assert driver.cuMemcpyDtoHAsync(pinned, memory, 64, stream) == DONE
    assert driver.cuMemFreeHost(pinned) == DONE
    assert driver.cuEventQuery(event) == DONE


def test_the_legacy_stream_is_done_when_the_blocking_streams_are(
    link: FakeLink, context: int
) -> None:
    _, blocking = driver.cuStreamCreate(0)
    _, apart = driver.cuStreamCreate(NON_BLOCKING)
    link.busy = True
    work(apart)
    assert driver.cuStreamQuery(0) == DONE
    work(blocking)
    assert driver.cuStreamQuery(0) == NOT_READY
    link.busy = False
    assert driver.cuStreamQuery(0) == DONE


def test_a_wait_for_a_record_uses_the_announcement_that_was_asked_for(
    link: FakeLink, event: int
) -> None:
    assert driver.cuEventQuery(event) == NOT_READY
    assert driver.cuEventSynchronize(event) == DONE
    assert link.ops().count(Op.EVENT_SYNC) == 1
    assert driver.cuEventSynchronize(event) == DONE
    assert link.ops().count(Op.EVENT_SYNC) == 1


def test_what_ended_the_contexts_is_what_a_question_gives(link: FakeLink, query: Query) -> None:
    assert query() == NOT_READY
    link.fail_next = {Op.EVENT_SYNC: 700, Op.STREAM_SYNC: 700}
    link.busy = False
    assert query() == ILLEGAL_ADDRESS


def test_a_link_that_ends_ends_the_question(
    link: FakeLink, event: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.cuEventQuery(event) == NOT_READY
    link.busy, link.error = False, LinkClosed("the session was closed")
    monkeypatch.setattr(link, "look", lambda: setattr(link.watches[0], "done", True))

    def ended() -> None:
        raise LinkClosed("the session was closed")

    monkeypatch.setattr(link.watches[0], "wait", ended)
    assert driver.cuEventQuery(event) == (LinkClosed.cu_result,)


def test_a_synchronous_copy_shows_its_stream_to_be_done(link: FakeLink, context: int) -> None:
    _, memory = driver.cuMemAlloc(4)
    assert driver.cuMemcpyDtoH((ctypes.c_char * 4)(), memory, 4) == DONE
    link.busy = True
    assert driver.cuStreamQuery(0) == DONE
    assert asked(link) == []
