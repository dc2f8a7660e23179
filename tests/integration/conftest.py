"""Servers and programs that tests of normal operation share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program, running
from helpers.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for a whole module; nothing takes epochs by itself."""
    state = tmp_path_factory.mktemp("server") / "state"
    with ServerProcess(state, ["--checkpoint-interval", "0"]) as started:
        yield started


@pytest.fixture
def program(
    server: ServerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Program]:
    """A program with a session of its own, which ends with the test."""
    name = request.node.name[:100]
    with running(server.endpoint, name, tmp_path / "client", end=True) as started:
        yield started
