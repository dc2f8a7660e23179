"""A server whose lease has run out: what was taken over it leaves, the rest it keeps."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.broken_link import BrokenLink
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session.leases import HostClock
from outlast.shim import driver

if TYPE_CHECKING:
    from helpers.postgres import PostgresServer


LEASE = 12.0  # seconds


@pytest.fixture
def arguments(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[list[str]]:
    """Give two servers a journal and a store of checkpoints to share."""
    with postgres_server.database() as url:
        store = f"directory:{tmp_path / 'checkpoints'}"
        yield ["--database", url, "--provider", store, "--lease-ttl", str(LEASE)]


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_server_that_slept_through_its_lease_leaves_the_session_to_its_successor(
    arguments: list[str], tmp_path: Path
) -> None:
    """C10: it is stopped, another one takes its session, it wakes."""
    with (
        ServerProcess(tmp_path / "a", arguments) as sleeper,
        ServerProcess(tmp_path / "b", arguments) as successor,
        BrokenLink(sleeper.endpoint) as proxy,
        driving(proxy.endpoint, tmp_path / "client", "mine", relay=True),
    ):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        old_workers = sleeper.session_workers()
        os.killpg(sleeper.pid, signal.SIGSTOP)
        try:
            proxy.target = successor.endpoint
            proxy.cut()
            counter.increment()
            assert counter.value() == 2
            assert successor.session_workers()
        finally:
            os.killpg(sleeper.pid, signal.SIGCONT)
        assert_eventually(lambda: "superseded" in sleeper.log_text(), "it notices")
        assert_eventually(
            lambda: not [pid for pid in old_workers if Path(f"/proc/{pid}").exists()],
            "the overtaken workers end",
        )
        counter.increment()
        assert counter.value() == 3
        assert driver.statistics()["reconnects"] == 1
        assert "superseded" not in successor.log_text()
        assert successor.terminate() == 0, successor.log_text()
        assert "session saved" in successor.log_text()
        assert sleeper.terminate() == 0, sleeper.log_text()
        assert "saved" not in sleeper.log_text()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_program_notices_that_its_server_sleeps_and_goes_on_when_it_wakes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: the gateway alone is stopped, and its worker soon waits for it."""
    caplog.set_level(logging.INFO, "outlast.link")
    with (
        ServerProcess(tmp_path / "a", ["--lease-ttl", "6"]) as server,
        driving(server.endpoint, tmp_path / "client", "mine", heartbeat_timeout=2.5),
    ):
        begin()
        counter = Counter()
        primary = check(driver.cuCtxGetCurrent())

        def work() -> None:
            check(driver.cuCtxSetCurrent(primary))
            for _ in range(100):
                for _ in range(100):  # each is news for the journal
                    check(driver.cuEventDestroy(check(driver.cuEventCreate(0))))
                counter.increment()

        worker = threading.Thread(target=work)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            worker.start()
            assert_eventually(lambda: "link lost" in caplog.text, "the program notices")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        worker.join(60)
        assert counter.value() == 100
        assert "the lease has ended, a new one is taken" in server.log_text()
        assert "superseded" not in server.log_text()
        assert server.terminate() == 0, server.log_text()


def test_a_server_whose_journal_was_out_for_longer_than_its_lease_keeps_its_sessions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: nobody else has taken them over, so their workers go on."""
    caplog.set_level(logging.INFO, "outlast.link")
    with (
        ServerProcess(tmp_path / "a", ["--lease-ttl", "2"]) as server,
        driving(server.endpoint, tmp_path / "client", "mine"),
        closing(sqlite3.connect(server.state / "journal.db", isolation_level=None)) as journal,
    ):
        begin()
        counter = Counter()
        counter.increment()
        assert counter.value() == 1
        workers = server.session_workers()
        journal.execute("BEGIN IMMEDIATE")
        (end,) = journal.execute("SELECT lease_expires FROM servers").fetchone()
        assert_eventually(lambda: "link lost" in caplog.text, "its worker acts no more")
        assert_eventually(lambda: HostClock().now(None) > end, "the lease ends")  # type: ignore[arg-type]
        journal.execute("ROLLBACK")
        counter.increment()
        assert counter.value() == 2
        assert server.session_workers() == workers
        assert "the lease has ended, a new one is taken" in server.log_text()
        assert server.terminate() == 0, server.log_text()
