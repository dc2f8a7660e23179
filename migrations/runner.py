"""Bring a journal to this version's revision: one transaction, one server at a time.

All DDL of an upgrade and the new revision commit together, on SQLite too, so a server that
is killed half-way leaves what was there before. Others wait for the lock of that
transaction, for a bounded time and with a line in the log, and find the work done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, RootTransaction, func, select, text

import outlast.migrations
from outlast.errors import ConfigError, JournalCorrupt, JournalNewer, JournalUnavailable

logger = logging.getLogger(__name__)

#: How often a waiting server asks again, and how often it says so.
POLL_INTERVAL = 0.05  # seconds
REPORT_INTERVAL = 5.0  # seconds
#: PostgreSQL's advisory lock of an upgrade ("outlast" in ASCII).
ADVISORY_LOCK = 0x6F75746C617374
#: The command line that goes back to a revision.
DOWNGRADE_COMMAND = "outlast journal downgrade"

_T = TypeVar("_T")

#: Alembic keeps its running migration in module globals.
_alembic = threading.Lock()


def upgrade(engine: Engine, *, timeout: float) -> bool:
    """Do what `revisions.upgrade` says for a journal that may not be at its head."""
    head = head_revision()
    if current_revision(engine) == head:
        return False
    with _exclusive(engine, timeout) as connection:
        if _known_revision(connection) == head:
            return False
        logger.info(
            "Upgrading the journal to revision %s.", head, extra={"action": "journal_upgrade"}
        )
        command.upgrade(_config(connection), "head")
    return True


def downgrade(engine: Engine, revision: str, *, timeout: float) -> None:
    """Do what `revisions.downgrade` says."""
    with _exclusive(engine, timeout) as connection:
        _known_revision(connection)
        try:
            command.downgrade(_config(connection), revision)
        except CommandError as error:
            raise ConfigError(f"cannot downgrade to revision {revision!r}: {error}") from error


def head_revision() -> str:
    """Return the revision this version of Outlast works with."""
    return str(_scripts().get_current_head())


def current_revision(engine: Engine) -> str | None:
    """Do what `revisions.current_revision` says."""
    with engine.connect().execution_options(read_only=True) as connection:
        return _known_revision(connection)


def _known_revision(connection: Connection) -> str | None:
    heads = MigrationContext.configure(connection).get_current_heads()
    known = {script.revision for script in _scripts().walk_revisions()}
    unknown = sorted(set(heads) - known)
    if unknown:
        raise JournalNewer(
            f"journal written by a newer version of Outlast: it is at revision "
            f"{', '.join(unknown)}, this version knows up to {head_revision()}. Start the newer "
            f"version, or run `{DOWNGRADE_COMMAND} {head_revision()}` with it first.",
            revision=unknown[0],
            head=head_revision(),
        )
    if len(heads) > 1:
        raise JournalCorrupt(f"the journal has {len(heads)} revisions at once: {heads}")
    return heads[0] if heads else None


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    folder = Path(str(outlast.migrations.__file__)).parent
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


@contextmanager
def _exclusive(engine: Engine, timeout: float) -> Iterator[Connection]:
    """Give a transaction that no other server, process or thread upgrades beside."""
    deadline = time.monotonic() + timeout
    if not _alembic.acquire(timeout=timeout):
        raise _still_locked(timeout)
    try:
        lock = _sqlite_lock if engine.dialect.name == "sqlite" else _postgresql_lock
        with engine.connect() as connection, lock(connection, deadline, timeout):
            yield connection
    finally:
        _alembic.release()


@contextmanager
def _sqlite_lock(connection: Connection, deadline: float, timeout: float) -> Iterator[None]:
    """Hold the database's write lock; `BEGIN IMMEDIATE` takes it."""
    driver = connection.connection.driver_connection
    assert driver is not None
    (patience,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute("PRAGMA busy_timeout=0")
    # Copying a table drops the old one: with keys enforced, its children's rows would go too.
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        with _poll(lambda: _begin(connection), deadline, timeout):
            yield
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise JournalCorrupt(f"after the upgrade {len(broken)} rows have lost their parent")
    finally:
        driver.execute("PRAGMA foreign_keys=ON")
        driver.execute(f"PRAGMA busy_timeout={patience}")


def _begin(connection: Connection) -> RootTransaction | None:
    try:
        return connection.begin()
    except JournalUnavailable as error:
        if not error.fields.get("locked"):
            raise
        return None


@contextmanager
def _postgresql_lock(connection: Connection, deadline: float, timeout: float) -> Iterator[None]:
    """Hold an advisory lock that ends with the transaction."""
    with connection.begin():
        attempt = select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))
        _poll(lambda: connection.scalar(attempt) or None, deadline, timeout)
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        yield


def _poll(attempt: Callable[[], _T | None], deadline: float, timeout: float) -> _T:
    """Try until it gives something or the time is over."""
    report_at = time.monotonic()
    while (result := attempt()) is None:
        now = time.monotonic()
        if now >= deadline:
            raise _still_locked(timeout)
        if now >= report_at:
            report_at = now + REPORT_INTERVAL
            logger.info(
                "Waiting for another server that upgrades the journal (%.0f s left).",
                deadline - now,
                extra={"action": "journal_upgrade_wait"},
            )
        time.sleep(POLL_INTERVAL)
    return result


def _still_locked(timeout: float) -> JournalUnavailable:
    return JournalUnavailable(
        f"another server has held the journal's upgrade lock for {timeout:g} s; "
        "see what it waits for, or stop it and start again",
        locked=True,
    )
