"""Calls whose handler fails, takes long or takes its worker with it: each gets its answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.kernels import Counter, begin, check
from helpers.links import driving, linked
from helpers.sabotage import Sabotage, Size
from helpers.server_process import ServerProcess, kill

from outlast.errors import LinkTimeout, SessionFailed
from outlast.session import wire
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME
from outlast.shim import driver
from outlast.shim.link import SessionLink

BEAT, SILENCE = 0.4, 1.5  # seconds


@pytest.fixture(scope="module")
def sabotage(tmp_path_factory: pytest.TempPathFactory) -> Sabotage:
    return Sabotage(tmp_path_factory.mktemp("sabotage"), seconds=3 * SILENCE)


@pytest.fixture(scope="module")
def server(sabotage: Sabotage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state = tmp_path_factory.mktemp("server") / "state"
    options = ["--heartbeat", str(BEAT), "--heartbeat-timeout", str(SILENCE)]
    with ServerProcess(state, options, sabotage.environment) as server:
        yield server


@pytest.fixture(autouse=True, params=["direct", "relayed"])
def link(
    request: pytest.FixtureRequest, server: ServerProcess, sabotage: Sabotage, tmp_path: Path
) -> Iterator[SessionLink]:
    sabotage.forget()
    times = {"heartbeat": BEAT, "heartbeat_timeout": SILENCE}
    relay = request.param == "relayed"
    with driving(server.endpoint, tmp_path, relay=relay, **times) as link:
        begin()
        yield link


def nothing_waits(link: SessionLink) -> bool:
    """Return whether no call and no query waits for an answer."""
    return not link._session._pending and not link._session._queries


@pytest.mark.parametrize("size", [Size.RAISES, Size.CRASHES], ids=["raises", "crashes"])
def test_a_call_that_always_ends_its_worker_is_failed_in_time(
    server: ServerProcess, link: SessionLink, tmp_path: Path, size: Size
) -> None:
    """C9: not tried for ever, and no other session notices."""
    started = time.monotonic()
    result, pointer = driver.cuMemAlloc(size)
    assert time.monotonic() - started < 15
    assert int(result) == SessionFailed.cu_result
    assert pointer is None
    assert isinstance(driver.last_error(), SessionFailed)
    assert "call" in str(driver.last_error())
    assert nothing_waits(link)
    assert server.process is not None
    assert server.process.poll() is None
    with driving(server.endpoint, tmp_path, relay=link.settings.relay) as another:
        begin()
        check(driver.cuMemFree(check(driver.cuMemAlloc(4096))))
        check(driver.cuCtxSynchronize())
        assert nothing_waits(another)


@pytest.mark.parametrize("size", [Size.RAISES_ONCE, Size.CRASHES_ONCE], ids=["raises", "crashes"])
def test_a_call_that_ends_one_worker_is_answered_by_the_next(link: SessionLink, size: Size) -> None:
    """C9: the session goes on as if nothing had been."""
    counter = Counter()
    counter.increment()
    pointer = check(driver.cuMemAlloc(size))
    assert link.reconnects >= 1
    assert nothing_waits(link)
    counter.increment()
    assert counter.value() == 2
    check(driver.cuMemFree(pointer))
    check(driver.cuCtxSynchronize())


def test_a_call_longer_than_a_frame_may_be_fails_in_time_and_harms_nobody_else(
    server: ServerProcess, link: SessionLink, tmp_path: Path
) -> None:
    """C9: libzmq drops such a frame and its connection, and tells its sender nothing."""
    record = wire.pack_record(Op.FUNCTION_GET, 16, 16, data=bytes(2 * MAX_FRAME))
    times = {"heartbeat": BEAT, "heartbeat_timeout": SILENCE, "reconnect_timeout": 2.0}
    with linked(server.endpoint, tmp_path, relay=link.settings.relay, **times) as sender:
        sender.send_record(record)
        started = time.monotonic()
        with pytest.raises(LinkTimeout, match="does not get on"):
            sender.call(Op.MEM_ALLOC, 64)
        assert time.monotonic() - started < 15
        assert nothing_waits(sender)
    assert server.process is not None
    assert server.process.poll() is None
    check(driver.cuMemFree(check(driver.cuMemAlloc(4096))))
    check(driver.cuCtxSynchronize())
    assert driver.statistics()["reconnects"] == 0


def test_a_call_that_takes_long_is_waited_for() -> None:
    """C9: the worker's signs of life go on."""
    started = time.monotonic()
    pointer = check(driver.cuMemAlloc(Size.SLEEPS))
    assert time.monotonic() - started > 3 * SILENCE
    check(driver.cuMemFree(pointer))
    assert driver.statistics()["reconnects"] == 0


def test_a_worker_killed_in_the_middle_of_a_call_is_replaced(server: ServerProcess) -> None:
    """C9: the waiting call gets its answer from the new worker."""
    counter = Counter()
    counter.increment()
    assert counter.value() == 1
    workers = server.session_workers()
    killer = threading.Timer(0.3, lambda: [kill(pid) for pid in workers])
    killer.start()
    counter.linger(4)
    counter.increment()
    assert counter.value() == 2
    killer.join()
    assert driver.statistics()["reconnects"] == 1


def test_a_worker_stopped_for_long_is_missed_and_comes_back(server: ServerProcess) -> None:
    """C5: the client notices the silence; the same worker goes on later."""
    counter = Counter()
    counter.increment()
    assert counter.value() == 1
    workers = server.session_workers()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    waker = threading.Timer(SILENCE + 1, lambda: [os.kill(p, signal.SIGCONT) for p in workers])
    waker.start()
    counter.increment()
    assert counter.value() == 2
    waker.join()
    assert server.session_workers() == workers
