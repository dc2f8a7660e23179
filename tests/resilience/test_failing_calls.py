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
from helpers.links import driving
from helpers.server_process import ServerProcess, kill

from outlast.errors import SessionFailed
from outlast.shim import driver

#: Sizes of allocations that the server below treats in its own way.
RAISES, SLEEPS, CRASHES = 0xBAD00, 0xBAD01, 0xBAD02
BEAT, SILENCE = 0.4, 1.5  # seconds

#: Python runs this at the start of each process that finds it on its path.
SABOTAGE = f"""
import os, signal, sys, time
if "outlast" in " ".join(sys.orig_argv):
    from outlast.server.calls import ANSWERED
    from outlast.session.schema import Op

    allocate = ANSWERED[Op.MEM_ALLOC]

    def sabotaged(executor, args, data, imposed):
        if args[0] == {RAISES}:
            raise KeyError("sabotage")
        if args[0] == {SLEEPS}:
            time.sleep({3 * SILENCE})
        if args[0] == {CRASHES}:
            os.kill(os.getpid(), signal.SIGSEGV)
        allocate(executor, args, data, imposed)

    ANSWERED[Op.MEM_ALLOC] = sabotaged
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("sabotage")
    (folder / "sitecustomize.py").write_text(SABOTAGE)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    options = ["--heartbeat", str(BEAT), "--heartbeat-timeout", str(SILENCE)]
    with ServerProcess(folder / "state", options, {"PYTHONPATH": path}) as server:
        yield server


@pytest.fixture(autouse=True, params=["direct", "relayed"])
def session(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[None]:
    times = {"heartbeat": BEAT, "heartbeat_timeout": SILENCE}
    relay = request.param == "relayed"
    with driving(server.endpoint, tmp_path, relay=relay, **times):
        begin()
        yield


@pytest.mark.parametrize("size", [RAISES, CRASHES], ids=["raises", "crashes"])
def test_a_call_that_always_ends_its_worker_is_failed_in_time(
    server: ServerProcess, size: int
) -> None:
    """C9: not tried for ever, and no other session notices."""
    started = time.monotonic()
    result, pointer = driver.cuMemAlloc(size)
    assert time.monotonic() - started < 15
    assert int(result) == SessionFailed.cu_result
    assert pointer is None
    assert isinstance(driver.last_error(), SessionFailed)
    assert "call" in str(driver.last_error())
    assert server.process is not None
    assert server.process.poll() is None


def test_a_call_that_takes_long_is_waited_for() -> None:
    """C9: the worker's signs of life go on."""
    started = time.monotonic()
    pointer = check(driver.cuMemAlloc(SLEEPS))
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
