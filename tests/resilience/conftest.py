"""Servers that tests may stop, kill and start again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program, running
from helpers.server_process import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own; nothing takes epochs by itself."""
    with ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"]) as started:
        yield started


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    """A program in this process, in the session ``train``."""
    with running(server.endpoint, "train", tmp_path / "client") as started:
        yield started
