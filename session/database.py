"""Engines for the journal: one way to open SQLite and PostgreSQL, one translation of errors.

Every error that leaves an engine made here is an `OutlastError`; passwords never do.

SQLite: WAL, ``synchronous=FULL`` and ``BEGIN IMMEDIATE`` for every transaction that may
write, so that a reader never has to become a writer (which fails at once, whatever the busy
timeout). A connection with the execution option ``read_only`` begins plainly.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError

from outlast.errors import (
    ConfigError,
    JournalCorrupt,
    JournalUnavailable,
    JournalValueError,
    OutlastError,
)

logger = logging.getLogger(__name__)

#: How long a transaction waits for others before it fails as `JournalUnavailable`.
LOCK_TIMEOUT = 10.0  # seconds
#: How long a connection attempt may take.
CONNECT_TIMEOUT = 5  # seconds
#: How long an unanswered network packet may keep a transaction waiting.
NETWORK_TIMEOUT = 10_000  # milliseconds

#: First PostgreSQL that can limit how long a transaction lasts.
TRANSACTION_TIMEOUT_SINCE = 170_000

_FORMS = "sqlite:////absolute/path.db or postgresql+psycopg://user@host/database"
#: File systems on which SQLite's shared memory or locks do not hold across hosts.
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")


def open_engine(url: str, *, lock_timeout: float = LOCK_TIMEOUT) -> Engine:
    """Make the engine of a journal; connects on first use.

    Parameters
    ----------
    url : str
        ``sqlite:////absolute/path.db`` or ``postgresql+psycopg://user@host/database``.
    lock_timeout : float
        Seconds a transaction waits for a lock.

    Raises
    ------
    ConfigError
        The URL cannot be used. The message never shows its password.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _open_sqlite(parsed, lock_timeout)
    else:
        engine = _open_postgresql(parsed, lock_timeout)
    event.listen(engine, "handle_error", _translate, retval=True)
    return engine


def masked(url: str) -> str:
    """Return a database URL, however malformed, without its password."""
    return re.sub(r"(?i)(password=)[^&\s]*", r"\1***", re.sub(r"//.*@", "//***@", url))


def network_file_system(path: Path, mounts: str = "/proc/mounts") -> str | None:
    """Return the type of the network file system that holds ``path``, if it is one."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return None
    points = ((Path(point), kind) for _, point, kind, *_ in map(str.split, lines))
    folder = path.resolve().parent
    held_by = [entry for entry in points if folder.is_relative_to(entry[0])]
    kind = max(held_by, key=lambda entry: len(entry[0].parts), default=(folder, ""))[1]
    return kind if kind.startswith(_NETWORK_FILE_SYSTEMS) else None


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        # The original error may quote a piece of the password.
        raise ConfigError(f"{masked(url)!r} is not a database URL: use {_FORMS}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(f"{masked(url)!r} names no file: a journal has to outlive its process")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigError(f"no journal can be kept in {parsed.drivername!r}: use {_FORMS}")
    return parsed


# -- SQLite ----------------------------------------------------------------------


def _open_sqlite(url: URL, lock_timeout: float) -> Engine:
    path = Path(str(url.database))
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the journal {path} does not exist")
    if path.is_dir():
        raise ConfigError(f"the journal {path} is a folder: name a file in it")
    if kind := network_file_system(path):
        logger.warning(
            "The journal %s is on a network file system (%s): SQLite loses data there. "
            "Use a local disk or PostgreSQL.",
            path,
            kind,
            extra={"action": "journal_on_network_file_system"},
        )
    engine = create_engine(
        url, connect_args={"timeout": lock_timeout}, json_serializer=_strict_json
    )

    def connect(connection: sqlite3.Connection, _record: object) -> None:
        # The driver must not begin transactions by itself: `begin` below does.
        connection.isolation_level = None
        _use_wal(connection, lock_timeout)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        _make_private(path)

    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
    return engine


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch the file to WAL; SQLite's busy timeout does not cover this one statement."""
    deadline = time.monotonic() + timeout
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not _is_locked(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _make_private(path: Path) -> None:
    """Keep other users out: the journal holds hashes of resume tokens."""
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        if name.exists() and name.stat().st_mode & 0o077 and name.stat().st_uid == os.geteuid():
            name.chmod(0o600)


def _is_locked(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# -- PostgreSQL ------------------------------------------------------------------


def _open_postgresql(url: URL, lock_timeout: float) -> Engine:
    milliseconds = int(lock_timeout * 1000)
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "tcp_user_timeout": NETWORK_TIMEOUT,
        "keepalives_idle": CONNECT_TIMEOUT,
        "application_name": "outlast",
        # A server that is frozen in the middle of a transaction must not hold its locks: those
        # that wait for them would lose their own leases.
        "options": f"-c lock_timeout={milliseconds} -c statement_timeout={3 * milliseconds} "
        f"-c idle_in_transaction_session_timeout={milliseconds // 2}",
    }
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=arguments, json_serializer=_strict_json)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a journal in PostgreSQL needs {error.name}: pip install 'psycopg[binary]'"
        ) from error

    def bound_transactions(connection: Any, _record: object) -> None:
        # Statements in a pipeline do not count as idle, so a frozen server could hold its
        # locks for ever; PostgreSQL knows a limit for that since version 17.
        if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
            connection.autocommit = True
            connection.execute(f"SET transaction_timeout = {2 * milliseconds}")
            connection.autocommit = False

    event.listen(engine, "connect", bound_transactions)
    return engine


#: One form on every database; PostgreSQL does not take NaN.
_strict_json = functools.partial(json.dumps, allow_nan=False, separators=(",", ":"))


# -- errors ----------------------------------------------------------------------


def _translate(context: ExceptionContext) -> BaseException | None:
    """Return the error of ours that stands for a database error."""
    original = context.original_exception
    if isinstance(original, OutlastError):
        return original
    where = _where(context)
    reason = _reason(original, context)
    if isinstance(original, TypeError | ValueError | OverflowError):
        return JournalValueError(f"the journal {where} cannot keep a value: {reason}")
    if isinstance(original, sqlite3.Error):
        return _translate_sqlite(original, where, reason)
    error = context.sqlalchemy_exception
    if isinstance(error, DataError | IntegrityError):
        return JournalValueError(f"the journal {where} cannot keep a value: {reason}")
    if isinstance(error, ProgrammingError):
        return _translate_programming(context, where, reason)
    if isinstance(error, DBAPIError):
        return JournalUnavailable(f"the journal {where} does not answer: {reason}", locked=False)
    return None


def _translate_sqlite(error: sqlite3.Error, where: str, reason: str) -> OutlastError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return JournalCorrupt(
            f"the journal {where} is damaged or not a journal: {reason}. "
            "Put a backup in its place, or move it away to start with an empty one."
        )
    if code == sqlite3.SQLITE_ERROR:
        return JournalCorrupt(f"the journal {where} has not the tables it should have: {reason}")
    values = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
    if isinstance(error, values):
        return JournalValueError(f"the journal {where} cannot keep a value: {reason}")
    locked = _is_locked(error)
    return JournalUnavailable(f"the journal {where} does not answer: {reason}", locked=locked)


def _translate_programming(context: ExceptionContext, where: str, reason: str) -> OutlastError:
    """Tell apart what PostgreSQL's driver calls a programming error."""
    state = getattr(context.original_exception, "sqlstate", None)
    if context.connection is None or state == "42501":  # insufficient_privilege
        return ConfigError(f"the journal {where} cannot be used with this URL: {reason}")
    if state is None:  # the driver has no form for a parameter's type
        return JournalValueError(f"the journal {where} cannot keep a value: {reason}")
    return JournalCorrupt(f"the journal {where} has not the tables it should have: {reason}")


def _where(context: ExceptionContext) -> str:
    if context.engine is None:
        return ""
    url = context.engine.url
    return str(url.database) if url.get_backend_name() == "sqlite" else masked(str(url))


def _reason(error: BaseException, context: ExceptionContext) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    password = context.engine.url.password if context.engine is not None else None
    return text.replace(str(password), "***") if password else text
