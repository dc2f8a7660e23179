"""Two servers and one session: the one that was overtaken stops acting."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.broken_link import BrokenLink
from helpers.kernels import Counter, begin
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually

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
def test_a_server_that_slept_through_its_lease_does_not_act_any_more(
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
        assert sleeper.wait() != 0
        assert "superseded" in sleeper.log_text()
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
