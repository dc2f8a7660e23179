"""What all tests share: choice of tests, the leak check and ZeroMQ contexts with a deadline."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import zmq
from helpers.database_fixtures import (  # noqa: F401 - fixtures
    backend,
    clock,
    journal_url,
    postgres_server,
    store,
    upgraded_database,
    upgraded_file,
    upgraded_url,
)
from helpers.leaks import Snapshot, leftovers, run_within, start_library_threads

#: A context that cannot be terminated in this time has a socket with unsent messages.
TERMINATION_DEADLINE = 5.0  # seconds

# How long one example takes says nothing on a machine that is shared.
hypothesis.settings.register_profile("outlast", deadline=None)
hypothesis.settings.load_profile("outlast")

# A shell has what it runs in the background ignore Ctrl-C, and programs under test inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long kill tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not config.getoption("--soak"):
        skips["soak"] = pytest.mark.skip(reason="long; run `make soak`")
    if not Path("/dev/nvidiactl").exists():
        skips["gpu"] = pytest.mark.skip(reason="no NVIDIA GPU here")
    for item in items:
        for name, skip in skips.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_session() -> Iterator[None]:
    """Fail the run when something is left at its end, lasting fixtures included."""
    start_library_threads()
    before = Snapshot.take()
    yield
    assert not (rest := leftovers(before, session=True)), f"left behind by the run: {rest}"


@pytest.fixture(scope="module", autouse=True)
def nothing_outlives_its_module(nothing_outlives_the_session: None) -> Iterator[None]:
    """Fail a test module that leaves threads, processes, descriptors or contexts behind."""
    before = Snapshot.take()
    yield
    assert not (rest := leftovers(before)), f"left behind by this module: {rest}"


@pytest.fixture(autouse=True)
def own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep the user's settings out of the tests, and the tests' files out of the user's home."""
    for name in [n for n in os.environ if n.startswith(("LUPINE_", "OUTLAST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state-home"))


@pytest.fixture
def zmq_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """Give a ZeroMQ context, and fail when it cannot be terminated within a deadline."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    run_within(TERMINATION_DEADLINE, lambda: context.destroy(linger=0), "zmq.Context.destroy")
