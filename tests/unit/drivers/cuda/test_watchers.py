"""A watched mark is announced once it is passed, whatever else is being waited for."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest
from helpers.fake_cuda import Bench, FakeCuda

from outlast.server.drivers.cuda.watchers import MOST, Watchers

ENOUGH = 10.0  # seconds


class WaitingCuda(FakeCuda):
    """Bindings whose blocking wait really waits."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = threading.Condition()
        self.closing = False

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        return (0,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        with self.moved:
            self.moved.wait_for(lambda: self.closing or self._events[event].done, ENOUGH)
        return (0,)

    def cuEventDestroy(self, event: int) -> tuple[int]:
        return (0,)

    def cuStreamDestroy(self, stream: int) -> tuple[int]:
        return (0,)

    def end(self, *works: object) -> None:
        """End work, or everything."""
        with self.moved:
            for work in works:
                work.ended = True  # type: ignore[attr-defined]
            self.closing = not works
            self.moved.notify_all()


@pytest.fixture
def cuda() -> WaitingCuda:
    return WaitingCuda()


@pytest.fixture
def bench(cuda: WaitingCuda) -> Bench:
    return Bench(cuda)


@pytest.fixture
def watchers(bench: Bench, cuda: WaitingCuda) -> Iterator[Watchers]:
    made = Watchers(cuda)
    made.prepare(bench.context)
    yield made
    cuda.end()
    made.close()


@pytest.fixture
def descriptor() -> Iterator[int]:
    number = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield number
    os.close(number)


def readable(descriptor: int, seconds: float = 0.0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_end_of_watched_work_is_announced(
    bench: Bench, cuda: WaitingCuda, watchers: Watchers, descriptor: int
) -> None:
    stream = bench.stream()
    work = bench.issue(stream)
    assert watchers.watch(bench.timeline.mark(stream), descriptor) == 0
    assert not readable(descriptor)
    cuda.end(work)
    assert readable(descriptor, ENOUGH)


def test_slow_stream_does_not_hide_the_end_of_another(
    bench: Bench, cuda: WaitingCuda, watchers: Watchers, descriptor: int
) -> None:
    slow, quick = bench.stream(), bench.stream()
    bench.issue(slow)
    work = bench.issue(quick)
    for stream in (slow, quick):
        assert watchers.watch(bench.timeline.mark(stream), descriptor) == 0
    cuda.end(work)
    assert readable(descriptor, ENOUGH)


def test_many_streams_share_a_bounded_number_of_threads(
    bench: Bench, cuda: WaitingCuda, watchers: Watchers, descriptor: int
) -> None:
    before = threading.active_count()
    works = []
    for _ in range(3 * MOST):
        stream = bench.stream()
        works.append(bench.issue(stream))
        assert watchers.watch(bench.timeline.mark(stream), descriptor) == 0
    assert threading.active_count() - before == MOST
    cuda.end(*works)
    assert readable(descriptor, ENOUGH)


def test_descriptor_that_is_closed_meanwhile_costs_its_stream_no_later_announcement(
    bench: Bench, cuda: WaitingCuda, watchers: Watchers, descriptor: int
) -> None:
    closed = os.eventfd(0, os.EFD_CLOEXEC)
    stream = bench.stream()
    first = bench.issue(stream)
    assert watchers.watch(bench.timeline.mark(stream), closed) == 0
    os.close(closed)
    second = bench.issue(stream)
    assert watchers.watch(bench.timeline.mark(stream), descriptor) == 0
    cuda.end(first, second)
    # The same thread announces both, one after the other.
    assert readable(descriptor, ENOUGH)
