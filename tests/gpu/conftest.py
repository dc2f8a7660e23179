"""Tests for a GPU: skipped, with the reason, where there is none.

With TESTED_DEVICE=emulated those that do not call CUDA themselves run without one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program, running
from helpers.server_process import ServerProcess

from outlast.server.drivers import probe

DEVICE = os.environ.get("TESTED_DEVICE", "cuda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if not here:
        return
    lack = probe.missing() if Path("/dev/nvidiactl").exists() else "no NVIDIA GPU here"
    for item in here:
        if DEVICE == "cuda":
            item.add_marker(pytest.mark.gpu)
        if lack and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=lack))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's settings out of the tests."""
    for name in [n for n in os.environ if n.startswith(("LUPINE_", "OUTLAST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def device() -> str:
    """Name of the device that is tested."""
    return DEVICE


@pytest.fixture
def server(tmp_path: Path, device: str) -> Iterator[ServerProcess]:
    """A server with the device; nothing takes epochs by itself."""
    arguments = ["--checkpoint-interval", "0"]
    with ServerProcess(tmp_path / "state", arguments, {"OUTLAST_DEVICE": device}) as started:
        yield started


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    """A program in this process, in the session ``train``."""
    with running(server.endpoint, "train", tmp_path / "client") as started:
        yield started
