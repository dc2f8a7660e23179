"""A stream has so much unfinished work and no more: its thread waits, the others go on."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
from helpers.fake_link import FakeLink, image

from outlast.errors import LinkClosed
from outlast.session.operations import Op
from outlast.shim import driver
from outlast.shim.linkage import COPY_UNIT
from outlast.shim.process import process

LIMIT = 8
SIZE = 64
FILL = (Op.MEMSET,)


@pytest.fixture
def link() -> Iterator[FakeLink]:
    """A link that allows few operations."""
    fake = FakeLink(devices=2)
    fake.stream_credits = LIMIT
    driver.use_link(fake)
    yield fake
    driver.use_link(None)


@pytest.fixture
def stream(link: FakeLink, context: int) -> int:
    _, made = driver.cuStreamCreate(1)
    return int(made)


@pytest.fixture
def memory(context: int) -> int:
    _, address = driver.cuMemAlloc(1 << 20)
    return int(address)


def fill(memory: int, stream: int, times: int = 1) -> None:
    for _ in range(times):
        assert driver.cuMemsetD8Async(memory, 0, SIZE, stream) == (0,)


def marks(link: FakeLink) -> int:
    """Return how often the end of a stream's work was asked for."""
    return link.ops().count(Op.STREAM_SYNC) + sum(not watch.done for watch in link.watches)


def test_a_program_that_waits_in_time_asks_for_nothing(
    link: FakeLink, stream: int, memory: int
) -> None:
    for _ in range(10):
        fill(memory, stream, LIMIT // 2)
        assert driver.cuStreamSynchronize(stream) == (0,)
    assert marks(link) == 10
    assert not link.watches


def test_waiting_for_the_context_does_as_well(link: FakeLink, stream: int, memory: int) -> None:
    for _ in range(10):
        fill(memory, stream, LIMIT // 2)
        assert driver.cuCtxSynchronize() == (0,)
    assert marks(link) == 0


def test_a_copy_to_the_host_that_is_waited_for_does_as_well(
    link: FakeLink, stream: int, memory: int
) -> None:
    for _ in range(10):
        fill(memory, stream, LIMIT // 2 - 1)
        assert driver.cuMemcpyDtoHAsync(bytearray(4), memory, 4, stream) == (0,)
    assert marks(link) == 0


def test_a_program_that_never_waits_asks_once_for_each_half_of_its_credits(
    link: FakeLink, stream: int, memory: int
) -> None:
    fill(memory, stream, 10 * LIMIT)
    assert marks(link) == 19


def test_a_full_stream_waits_for_the_first_half_alone(
    link: FakeLink, stream: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.busy = True
    fill(memory, stream, LIMIT)
    (first,) = link.watches
    waited = []
    monkeypatch.setattr(first, "wait", lambda: waited.append(1) or setattr(first, "done", True))
    fill(memory, stream, LIMIT // 2)
    assert waited == [1]
    assert not link.watches[1].done


def test_a_thread_whose_stream_is_full_waits_while_others_go_on(
    link: FakeLink, stream: int, memory: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = driver.cuStreamCreate(1)
    link.busy, opened = True, threading.Event()
    fill(memory, stream, LIMIT)
    first = link.watches[0]

    def wait() -> None:
        assert opened.wait(10)
        first.done = True

    monkeypatch.setattr(first, "wait", wait)

    def work() -> None:
        driver.cuCtxSetCurrent(context)
        fill(memory, stream)

    thread = threading.Thread(target=work)
    thread.start()
    fill(memory, other, LIMIT)
    assert driver.cuMemFree(driver.cuMemAlloc(8)[1]) == (0,)
    assert thread.is_alive()
    assert len([call for call in link.of(Op.MEMSET) if call[1][1] == stream]) == LIMIT
    opened.set()
    thread.join(10)
    assert not thread.is_alive()


def test_everything_that_a_stream_does_counts(
    link: FakeLink, stream: int, memory: int, context: int
) -> None:
    """One operation each, and copies more the longer they are."""
    link.stream_credits = 1 << 20
    _, module = driver.cuModuleLoadData(image(("empty", [])))
    _, kernel = driver.cuModuleGetFunction(module, b"empty")
    _, event = driver.cuEventCreate(0)
    _, pinned = driver.cuMemAllocHost(1 << 20)
    _, ordered = driver.cuMemAllocAsync(64, stream)
    long = COPY_UNIT * 3
    mine = process.client.streams.get(stream)
    link.kernels["empty"] = lambda *_: None
    for cost, call in (
        (1, lambda: driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, ((), ()), 0)),
        (1, lambda: driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)),
        (1, lambda: driver.cuMemsetD32Async(memory, 0, 1, stream)),
        (1, lambda: driver.cuEventRecord(event, stream)),
        (1, lambda: driver.cuStreamWaitEvent(stream, event, 0)),
        (1, lambda: driver.cuMemcpyDtoDAsync(memory, memory + 512, 64, stream)),
        (1, lambda: driver.cuMemcpyHtoDAsync(memory, b"x" * 64, 64, stream)),
        (4, lambda: driver.cuMemcpyHtoDAsync(memory, bytes(long), long, stream)),
        (1, lambda: driver.cuMemcpyDtoHAsync(pinned, memory, 64, stream)),
        (4, lambda: driver.cuMemcpyDtoHAsync(pinned, memory, long, stream)),
        (1, lambda: driver.cuMemFreeAsync(ordered, stream)),
    ):
        before = mine.taken
        assert call() == (0,)
        assert mine.taken - before == cost


def test_each_thread_has_credits_of_its_own_in_its_own_stream(
    link: FakeLink, memory: int, context: int
) -> None:
    link.busy = True
    fill(memory, 2, LIMIT)

    def work() -> None:
        driver.cuCtxSetCurrent(context)
        fill(memory, 2, LIMIT)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(link.of(Op.MEMSET)) == 2 * LIMIT


def test_a_link_that_ends_ends_the_wait(
    link: FakeLink, stream: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.busy = True
    fill(memory, stream, LIMIT)

    def wait() -> None:
        raise LinkClosed("the session was closed")

    monkeypatch.setattr(link.watches[0], "wait", wait)
    assert driver.cuMemsetD8Async(memory, 0, SIZE, stream) == (LinkClosed.cu_result,)
    assert len(link.of(Op.MEMSET)) == LIMIT


def test_a_stream_that_failed_is_not_waited_for(link: FakeLink, stream: int, memory: int) -> None:
    """The answer is the error then, and what is issued behind it is skipped."""
    for _ in range(LIMIT):
        link.fail_next[Op.STREAM_SYNC] = 700
        fill(memory, stream, LIMIT)
    assert len(link.of(Op.MEMSET)) == LIMIT * LIMIT


def test_a_copy_of_any_length_goes_when_there_is_room(
    link: FakeLink, stream: int, memory: int
) -> None:
    link.busy = True
    size = COPY_UNIT * LIMIT * 2
    assert driver.cuMemcpyHtoDAsync(memory, (ctypes.c_char * size)(), size, stream) == (0,)
    assert len(link.of(Op.COPY_HTOD)) == 1
