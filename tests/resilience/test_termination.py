"""SIGTERM at every moment of a server's life: acted on at once, everything saved or named."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from helpers.client_program import ClientProgram
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.program import epochs_of
from helpers.server_process import DEVICE, ServerProcess, assert_eventually

from outlast.shim import driver

#: How soon a signal shows.
PROMPT = 0.5  # seconds
#: What a busy machine adds to what is measured from outside, and the end of a process that
#: has contexts on a GPU.
NOISE = 1.5 if DEVICE == "emulated" else 5.0  # seconds
#: Says what it finds when it is told to, and how much of it was replayed: ``77 0``.
LASTING = """
begin()
address = check(cuda.cuMemAlloc(4))
check(cuda.cuMemsetD32(address, 77, 1))
check(cuda.cuCtxSynchronize())
say("ready")
sys.stdin.readline()
say(read(address)[0], cuda.statistics()["replayed_calls"])
"""
#: Says that it is ready when its kernel, which never ends, is under way.
ENDLESS = """
from helpers.kernels import Counter
begin()
counter = Counter()
counter.linger(1e6)
check(cuda.cuMemGetInfo())  # answered behind the launch
say("ready")
sys.stdin.readline()
"""
SLOW_READ = json.dumps([{"stage": "read", "action": "slow", "seconds": 20.0}])


def moment(log: str, action: str) -> float:
    """Return when the log says that something happened."""
    found = re.search(rf"^(\S+) .*action={action}\b", log, re.MULTILINE)
    assert found, f"the log has no {action}:\n{log}"
    return datetime.fromisoformat(found[1]).timestamp()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state") as server:
        yield server


def test_an_idle_server_ends_at_once(server: ServerProcess) -> None:
    """E11a."""
    started = time.time()
    assert server.terminate() == 0
    assert moment(server.log_text(), "drain_started") - started < PROMPT
    assert time.time() - started < PROMPT + NOISE


def test_signals_until_the_very_end_do_not_change_the_exit_code(server: ServerProcess) -> None:
    process = server.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10.0
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.0005)

    assert server.wait() == 0


def test_a_checkpoint_starts_at_once_and_the_session_is_saved(
    server: ServerProcess, tmp_path: Path
) -> None:
    """E11: the whole process group gets the signal, and no worker dies before it has saved."""
    with driving(server.endpoint, tmp_path, "mine"):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        started = time.time()
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait() == 0
        assert moment(server.log_text(), "drain_started") - started < PROMPT
        assert moment(server.log_text(), "epoch_committed") - started < PROMPT + NOISE
        assert "session saved" in server.log_text()
        server.start()
        assert counter.value() == 1
        assert driver.statistics()["replayed_calls"] == 0


def test_a_transfer_in_progress_does_not_hold_the_end(
    server: ServerProcess, tmp_path: Path
) -> None:
    """E11c: the rest of the transfer goes to the next server."""
    size = 256 << 20
    program = f"""
begin()
address = check(cuda.cuMemAlloc({size}))
data = np.arange({size} // 4, dtype=np.int32)
say("sending")
check(cuda.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
out = np.zeros_like(data)
check(cuda.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
say((out == data).all(), cuda.statistics()["reconnects"])
"""
    with ClientProgram(program, server.endpoint, tmp_path, "mine") as client:
        assert client.expect() == "sending"
        started = time.time()
        assert server.terminate() == 0
        assert moment(server.log_text(), "drain_started") - started < PROMPT
        server.start()
        assert client.expect(40) == "True 1"
        assert client.end() == 0


def test_a_second_signal_ends_the_wait_for_a_save(tmp_path: Path) -> None:
    """E11f: what is not saved then is named, and the code says so."""
    slow = json.dumps([{"stage": "write-data", "action": "slow", "seconds": 30.0}])
    with (
        ServerProcess(tmp_path / "state", environment={"LUPINE_CHECKPOINT_FAULTS": slow}) as server,
        driving(server.endpoint, tmp_path, "mine"),
    ):
        begin()
        assert Counter().value() == 0
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        assert_eventually(lambda: "drain started" in server.log_text(), "the drain", 5)
        started = time.monotonic()
        assert server.terminate() == 3
        assert time.monotonic() - started < 4
        assert "not saved: mine" in server.log_text()
        server.environment = {}
        server.start()
        check(driver.cuCtxSynchronize())


def test_a_session_that_cannot_be_saved_in_time_is_named(tmp_path: Path) -> None:
    """E11: the exit code is 3, and the client's log still has everything."""
    slow = json.dumps([{"stage": "write-data", "action": "slow", "seconds": 30.0}])
    with (
        ServerProcess(
            tmp_path / "state", ["--grace", "1"], {"LUPINE_CHECKPOINT_FAULTS": slow}
        ) as server,
        driving(server.endpoint, tmp_path, "mine"),
    ):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        started = time.monotonic()
        assert server.terminate() == 3
        assert time.monotonic() - started < 1 + NOISE
        assert "not saved: mine" in server.log_text()
        server.environment = {}
        server.start()
        assert counter.value() == 1


def test_a_signal_during_a_restore_leaves_the_stored_epoch(
    server: ServerProcess, tmp_path: Path
) -> None:
    """E11d: half-restored memory never becomes the newest epoch."""
    with driving(server.endpoint, tmp_path, "mine"):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        assert server.terminate() == 0
        server.environment = {"LUPINE_CHECKPOINT_FAULTS": SLOW_READ}
        server.start()
        assert_eventually(lambda: server.session_workers(), "the restore begins")
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 3 + NOISE
        server.environment = {}
        server.start()
        counter.increment()
        assert counter.value() == 2


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.25, 0.5])
def test_a_signal_during_the_start_ends_it(tmp_path: Path, delay: float) -> None:
    """E11e: whatever has been set up by then."""
    with ServerProcess(tmp_path / "state") as server:
        server.terminate()
        process = server.spawn()
        time.sleep(delay)  # the moment is what varies
        started = time.monotonic()
        assert server.terminate() in (0, -signal.SIGTERM)
        assert time.monotonic() - started < PROMPT + NOISE
        assert process.returncode is not None
        server.start()


def test_a_signal_during_a_start_that_waits_for_the_journal_ends_it(
    server: ServerProcess,
) -> None:
    """E11b: no back-off is slept out."""
    assert server.terminate() == 0
    with locked(server.state / "journal.db"):
        server.spawn()
        assert_eventually(lambda: (server.state / "server.lock").exists(), "it starts")
        time.sleep(1.5)  # into the wait for the lock
        started = time.monotonic()
        assert server.terminate() in (0, -signal.SIGTERM)
        assert time.monotonic() - started < PROMPT + NOISE


def test_a_journal_that_does_not_answer_does_not_hold_the_end_beyond_grace(
    tmp_path: Path,
) -> None:
    """E11b: the session is named, for its epoch could not be committed."""
    with (
        ServerProcess(tmp_path / "state", ["--grace", "3"]) as server,
        driving(server.endpoint, tmp_path, "mine"),
    ):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        with locked(server.state / "journal.db"):
            started = time.monotonic()
            assert server.terminate() == 3
            assert time.monotonic() - started < 3 + NOISE
        assert "not saved: mine" in server.log_text()
        server.start()
        assert counter.value() == 1


def test_workers_that_do_not_end_hold_the_server_no_longer_than_one(tmp_path: Path) -> None:
    """E11: stopped ones are killed together, within the grace time."""
    program = """
begin()
address = check(cuda.cuMemAlloc(4))
check(cuda.cuMemsetD32(address, 77, 1))
check(cuda.cuCtxSynchronize())
say("ready")
sys.stdin.readline()
say(read(address)[0])
"""
    with (
        ServerProcess(tmp_path / "state", ["--grace", "2"]) as server,
        ExitStack() as ends,
    ):
        clients = [
            ends.enter_context(ClientProgram(program, server.endpoint, tmp_path, f"s{i}"))
            for i in range(3)
        ]
        for client in clients:
            assert client.expect() == "ready"
        for worker in server.session_workers():
            os.kill(worker, signal.SIGSTOP)
        started = time.monotonic()
        assert server.terminate() == 3
        assert time.monotonic() - started < 2 + NOISE
        assert server.log_text().count("not saved: s") == len(clients)
        server.start()
        for client in clients:
            client.tell()
        assert {client.expect() for client in clients} == {"77"}


def test_all_sessions_are_saved_together(server: ServerProcess, tmp_path: Path) -> None:
    """E11: all at once, each with its own epoch."""
    clients = [ClientProgram(LASTING, server.endpoint, tmp_path, f"s{i}") for i in range(3)]
    try:
        for client in clients:
            assert client.expect() == "ready"
        assert server.terminate() == 0
        assert server.log_text().count("session saved") == len(clients)
        server.start()
        for client in clients:
            client.tell()
        assert {client.expect() for client in clients} == {"77 0"}
    finally:
        for client in clients:
            client.__exit__()


@pytest.mark.slow
def test_a_kernel_that_never_ends_costs_no_other_session_its_checkpoint(tmp_path: Path) -> None:
    """E10: two are saved whole, the third is named busy, and nothing of the server is left."""
    grace = 10
    tests = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])
    arguments = ["--grace", str(grace), "--checkpoint-interval", "0"]
    with ServerProcess(tmp_path / "state", arguments) as server, ExitStack() as ends:
        programs = {"good-1": LASTING, "good-2": LASTING, "endless": ENDLESS}
        clients = {
            name: ends.enter_context(
                ClientProgram(code, server.endpoint, tmp_path, name, PYTHONPATH=tests)
            )
            for name, code in programs.items()
        }
        for client in clients.values():
            assert client.expect() == "ready"
        started = time.monotonic()
        assert server.terminate() == 3  # and waits until no worker is left
        assert time.monotonic() - started < grace + NOISE
        log = server.log_text()
        assert "not saved: endless: busy" in log
        assert log.count("not saved: ") == 1
        assert not epochs_of(server.state, "endless")
        for name in ("good-1", "good-2"):
            (row,) = epochs_of(server.state, name)
            assert row.verified
        clients["endless"].signal(signal.SIGKILL)
        server.start()
        for name in ("good-1", "good-2"):
            clients[name].tell()
            assert clients[name].expect() == "77 0"
