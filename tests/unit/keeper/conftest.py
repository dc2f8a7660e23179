"""A keeper of its own for each test, and processes that hold memory in it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.keeper import HolderProcess, keeper_pid
from helpers.server_process import assert_eventually

from outlast.server.keeper.client import Keeper


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """Give a state folder; its keeper is ended behind the test."""
    yield tmp_path
    with suppress(ValueError, ProcessLookupError):
        pid = keeper_pid(tmp_path)
        end = os.pidfd_open(pid)
        os.kill(pid, 9)
        assert_eventually(lambda: bool(select.select([end], [], [], 0)[0]), "the keeper ends", 5)
        os.close(end)


@pytest.fixture
def keeper(state: Path) -> Iterator[Keeper]:
    """Give a connection to a running keeper."""
    found = Keeper(state)
    found.start(ttl=60.0)
    yield found
    found.close()


@pytest.fixture
def holder(state: Path) -> Iterator[Callable[[], HolderProcess]]:
    """Give a way to start holders; all are ended behind the test."""
    started: list[HolderProcess] = []

    def start() -> HolderProcess:
        started.append(HolderProcess(state))
        return started[-1]

    yield start
    for process in started:
        process.kill()
