"""A gateway that dies or leaves takes no session with it: the next one takes the workers over."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually, kill, wait_gone

from outlast.session.store import Store
from outlast.shim import driver
from outlast.shim.link import SessionLink

#: Of servers that a test waits out, and of others: a busy machine starts none within the first.
SHORT, LONG = 4.0, 30.0  # seconds


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    lease = getattr(request, "param", LONG)
    options = ["--checkpoint-interval", "0", "--lease-ttl", str(lease)]
    with ServerProcess(tmp_path / "state", options) as started:
        yield started


@pytest.fixture
def session(server: ServerProcess, tmp_path: Path) -> Iterator[SessionLink]:
    with driving(server.endpoint, tmp_path / "client", session="train") as link:
        begin()
        yield link


@pytest.fixture
def counter(session: SessionLink) -> Counter:
    return Counter()


def test_a_direct_client_does_not_notice_a_killed_gateway(
    server: ServerProcess, counter: Counter
) -> None:
    counter.reach(1)
    workers = server.session_workers()
    server.kill(workers_too=False)
    counter.reach(2)  # without any gateway
    server.start()
    counter.reach(3)
    assert server.session_workers() == workers
    assert "worker taken over" in server.log_text()
    assert driver.statistics()["reconnects"] == 0
    assert driver.statistics()["replayed_calls"] == 0


def test_a_gateway_leaves_its_workers_to_the_next(server: ServerProcess, counter: Counter) -> None:
    counter.reach(1)
    workers = server.session_workers()
    for _ in range(3):
        assert server.leave() == 0
        server.start()
    counter.reach(2)
    assert server.session_workers() == workers
    assert driver.statistics()["reconnects"] == 0


def test_a_relayed_client_comes_back_to_the_same_worker(
    server: ServerProcess, tmp_path: Path
) -> None:
    with driving(server.endpoint, tmp_path / "client", session="train", relay=True):
        begin()
        counter = Counter()
        counter.reach(1)
        workers = server.session_workers()
        server.kill(workers_too=False)
        server.start()
        counter.reach(2)
        assert server.session_workers() == workers
        assert driver.statistics()["reconnects"] == 1


def test_a_kernel_that_runs_meanwhile_is_not_disturbed(
    server: ServerProcess, counter: Counter
) -> None:
    counter.linger(1.0)
    counter.increment()
    server.kill(workers_too=False)
    server.start()
    assert counter.value() == 1
    assert driver.statistics()["reconnects"] == 0


def test_what_the_old_gateway_did_not_write_is_in_the_journal(
    server: ServerProcess, counter: Counter
) -> None:
    os.kill(server.pid, signal.SIGSTOP)  # it lives, and writes nothing
    streams = [check(driver.cuStreamCreate(1)) for _ in range(5)]
    pointer = check(driver.cuMemAlloc(12345))
    check(driver.cuStreamDestroy(streams[0]))
    check(driver.cuCtxSynchronize())
    server.kill(workers_too=False)
    server.start()
    store = Store.open(f"sqlite:///{server.state / 'journal.db'}")

    def written() -> bool:
        sizes = [row.size for row in store.allocations("train")]
        kinds = [row.kind for row in store.handles("train")]
        return 12345 in sizes and kinds.count("stream") == 4

    assert_eventually(written, "the journal has it", 10)
    store.close()
    check(driver.cuMemFree(pointer))


def test_a_checkpoint_in_hand_is_committed_once(
    server: ServerProcess, session: SessionLink, counter: Counter
) -> None:
    counter.increment()
    os.kill(server.pid, signal.SIGSTOP)
    session.request_epoch()
    folder = server.state / "checkpoints"
    assert_eventually(lambda: list(folder.rglob("*.json")), "it is saved, and not committed", 10)
    server.kill(workers_too=False)
    server.start()
    assert_eventually(lambda: "epoch committed" in server.log_text(), "it is committed", 10)
    server.kill()  # now everything: what is stored has to do
    server.start()
    assert counter.value() == 1


@pytest.mark.parametrize("server", [SHORT], indirect=True)
def test_workers_that_no_gateway_comes_for_end_with_the_lease(
    server: ServerProcess, counter: Counter
) -> None:
    counter.reach(1)
    workers = server.session_workers()
    server.kill(workers_too=False)
    started = time.monotonic()
    wait_gone(workers, SHORT + 5)
    assert time.monotonic() - started < SHORT + 2
    server.start()
    counter.reach(2)


def test_a_worker_whose_session_was_claimed_since_is_ended(
    server: ServerProcess, counter: Counter
) -> None:
    counter.reach(1)
    workers = server.session_workers()
    server.kill(workers_too=False)
    with sqlite3.connect(server.state / "journal.db") as database:
        database.execute("update sessions set token = token + 1")
    database.close()
    server.start()
    wait_gone(workers, 10)
    assert "is not taken over" in server.log_text()
    counter.reach(2)
    assert server.session_workers() != workers


def test_a_server_on_another_journal_ends_no_worker_and_the_right_one_takes_it_over(
    server: ServerProcess, counter: Counter, tmp_path: Path
) -> None:
    counter.reach(1)
    workers = server.session_workers()
    assert server.leave() == 0
    right = server.arguments
    server.arguments = [*right, "--database", f"sqlite:///{tmp_path}/wrong.db"]
    server.start()
    assert "this journal does not know it" in server.log_text()
    counter.reach(2)
    assert server.leave() == 0
    server.arguments = right
    server.start()
    counter.reach(3)
    assert server.session_workers() == workers
    assert driver.statistics()["reconnects"] == 0


def test_a_stopped_worker_does_not_hold_up_the_start(
    server: ServerProcess, counter: Counter
) -> None:
    counter.reach(1)
    (worker,) = server.session_workers()
    server.kill(workers_too=False)
    os.kill(worker, signal.SIGSTOP)
    started = time.monotonic()
    server.start()
    assert time.monotonic() - started < 5
    kill(worker)
    counter.reach(2)


def test_sigterm_right_after_the_succession_saves_the_session(
    server: ServerProcess, counter: Counter
) -> None:
    counter.reach(1)
    server.kill(workers_too=False)
    server.start()
    assert server.terminate() == 0
    assert "session saved" in server.log_text()
    server.start()
    assert counter.value() == 1
