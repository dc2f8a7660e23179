"""Calls made while the server is away, links that fall silent, servers that forgot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.broken_link import BrokenLink, Recorder, Way
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually

from outlast.config import ClientConfig, ServeConfig
from outlast.errors import ConfigError, SessionNotFound
from outlast.session.schema import Kind
from outlast.shim import driver

#: Heartbeats of these tests: short, so that silence is noticed soon.
BEAT, SILENCE = 0.4, 1.5  # seconds
THREADS = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    options = ["--heartbeat", str(BEAT), "--heartbeat-timeout", str(SILENCE)]
    with ServerProcess(tmp_path / "state", options) as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[BrokenLink]:
    with BrokenLink(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def counter(proxy: BrokenLink, tmp_path: Path) -> Iterator[Counter]:
    """Give a counter in a session whose every byte goes through the proxy."""
    times = {"heartbeat": BEAT, "heartbeat_timeout": SILENCE}
    with driving(proxy.endpoint, tmp_path / "client", "mine", relay=True, **times):
        begin()
        yield Counter()


class Calls:
    """Allocations made by several threads at once."""

    def __init__(self, threads: int) -> None:
        self.context = check(driver.cuCtxGetCurrent())
        self.answers: list[tuple[int, int]] = []
        self._threads = [threading.Thread(target=self._allocate) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def join(self, timeout: float) -> None:
        """Wait for all answers."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        waiting = [thread for thread in self._threads if thread.is_alive()]
        assert not waiting, f"{len(waiting)} calls got no answer within {timeout} s"

    def _allocate(self) -> None:
        check(driver.cuCtxSetCurrent(self.context))
        result, pointer = driver.cuMemAlloc(4096)
        self.answers.append((int(result), int(pointer or 0)))


def free_memory() -> int:
    result, free, _ = driver.cuMemGetInfo()
    assert int(result) == 0
    return int(free)


def lost(text: Callable[[], str], times: int = 1) -> Callable[[], bool]:
    return lambda: text().count("client detached") >= times


def test_calls_of_an_outage_are_done_once_behind_the_handshake(
    server: ServerProcess, proxy: BrokenLink, counter: Counter
) -> None:
    """C4: five threads call while the server is away; it comes back with its journal."""
    counter.increment()
    assert counter.value() == 1
    free = free_memory()
    server.kill()
    calls = Calls(THREADS)
    counter.increment()
    recorder = proxy.rule = Recorder(Way.UP)
    server.start()
    calls.join(20)
    order = [kind for kind in recorder.kinds if kind in (Kind.HELLO, Kind.ATTACH, Kind.CALLS)]
    assert order[0] is Kind.HELLO
    assert order.index(Kind.ATTACH) < order.index(Kind.CALLS)
    assert {result for result, _ in calls.answers} == {0}
    pointers = sorted(pointer for _, pointer in calls.answers)
    assert len(set(pointers)) == THREADS
    assert counter.value() == 2
    for pointer in pointers:
        check(driver.cuMemFree(pointer))
    assert free_memory() == free


def test_a_server_that_does_not_know_the_session_says_so_to_every_call(
    server: ServerProcess, proxy: BrokenLink, counter: Counter, tmp_path: Path
) -> None:
    """C4: no empty session takes the place of the lost one."""
    server.kill()
    calls = Calls(THREADS)
    with ServerProcess(tmp_path / "another") as other:
        proxy.target = other.endpoint
        started = time.monotonic()
        calls.join(2 + 1)  # a back-off of at most one second comes before
        assert time.monotonic() - started < 3
        assert {result for result, _ in calls.answers} == {SessionNotFound.cu_result}
        assert isinstance(driver.last_error(), SessionNotFound)
        assert "'mine'" in str(driver.last_error())
        assert not other.session_workers()


def test_a_black_hole_is_noticed_on_both_sides_and_the_session_goes_on(
    server: ServerProcess, proxy: BrokenLink, counter: Counter
) -> None:
    """C5: nothing tells of the loss but silence."""
    counter.increment()
    assert counter.value() == 1
    connections = proxy.connections
    proxy.freeze()
    started = time.monotonic()
    assert_eventually(lost(server.log_text), "the server notices", SILENCE + 2)
    assert_eventually(lambda: proxy.connections > connections, "the client notices", SILENCE + 2)
    assert time.monotonic() - started > SILENCE / 2
    counter.increment()
    proxy.thaw()
    assert counter.value() == 2
    assert driver.statistics()["reconnects"] == 1


@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
@pytest.mark.parametrize(
    ("size", "rate"),
    [
        pytest.param(16 << 20, (16 << 20) / (3 * SILENCE), id="16 MiB"),
        pytest.param(
            64 << 20,
            2 << 20,
            id="64 MiB at 2 MiB per second",
            marks=[pytest.mark.soak, pytest.mark.timeout(240)],
        ),
    ],
)
def test_bulk_over_a_slow_link_is_not_cut_by_heartbeats(
    server: ServerProcess, proxy: BrokenLink, counter: Counter, way: Way, size: int, rate: float
) -> None:
    """C5: the transfer takes several times the silence that counts as death."""
    data = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    out = np.zeros_like(data)
    address = check(driver.cuMemAlloc(size))
    if way is Way.DOWN:
        check(driver.cuMemcpyHtoD(address, data.ctypes.data, size))
        check(driver.cuCtxSynchronize())
    proxy.rate = rate
    started = time.monotonic()
    if way is Way.UP:
        check(driver.cuMemcpyHtoD(address, data.ctypes.data, size))
        check(driver.cuCtxSynchronize())
    else:
        check(driver.cuMemcpyDtoH(out.ctypes.data, address, size))
    assert time.monotonic() - started > 0.9 * size / rate > 2 * SILENCE
    proxy.rate = 0
    if way is Way.UP:
        check(driver.cuMemcpyDtoH(out.ctypes.data, address, size))
    assert np.array_equal(out, data)
    assert driver.statistics()["reconnects"] == 0
    assert not lost(server.log_text)()


def test_a_long_kernel_without_traffic_is_not_cut(server: ServerProcess, counter: Counter) -> None:
    """C5: the device works three times as long as silence would count as death."""
    started = time.monotonic()
    counter.linger(3 * SILENCE)
    counter.increment()
    assert counter.value() == 1
    assert time.monotonic() - started >= 3 * SILENCE
    assert driver.statistics()["reconnects"] == 0
    assert not lost(server.log_text)()


@pytest.mark.parametrize("timeout", ["65.536", "66", "3600"])
def test_a_heartbeat_timeout_that_would_overflow_is_refused(timeout: str) -> None:
    """C5: libzmq keeps it in 16 bits of milliseconds."""
    settings: Sequence[Callable[[], object]] = (
        lambda: ServeConfig.resolve({"heartbeat_timeout": timeout}, {}),
        lambda: ClientConfig.from_env({"LUPINE_HEARTBEAT_TIMEOUT": timeout}),
    )
    for read in settings:
        with pytest.raises(ConfigError, match=r"65\.536"):
            read()
