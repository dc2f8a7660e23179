"""Opening a journal, and what its database's errors become."""

from __future__ import annotations

import logging
import os
import sqlite3
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.journal import INCARNATION, create, register

from outlast.errors import (
    ConfigError,
    JournalCorrupt,
    JournalUnavailable,
    JournalValueError,
)
from outlast.migrations import upgrade
from outlast.session import database
from outlast.session.database import masked, network_file_system, open_engine
from outlast.session.rows import HandleCreated
from outlast.session.store import Store

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "not a url",
        f"postgresql+psycopg://me:{SECRET}@host:port/db",
        f"postgresql+psycopg://me:{SECRET}/@host:54x/db",
        f"mysql://me:{SECRET}@host/db",
        f"postgresql+asyncpg://me:{SECRET}@host/db",
        f"nonsense://me:{SECRET}@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////no/such/folder/journal.db",
    ],
)
def test_a_url_that_cannot_be_used_is_a_setting_error_without_the_password(url):
    with pytest.raises(ConfigError) as caught:
        Store.open(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        Store.open(f"sqlite:///{tmp_path}")


def test_a_store_that_one_thread_opened_is_used_by_another(store):
    token = create(store)
    with ThreadPoolExecutor(1) as database_thread:
        row = database_thread.submit(store.attach, "train", token, INCARNATION).result()
    assert row == store.session("train")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        f"postgresql+psycopg://127.0.0.1:1/db?user=me&password={SECRET}",
    ],
)
def test_a_server_that_does_not_answer_is_unavailable_without_the_password(url):
    store = Store.open(url)
    with pytest.raises(JournalUnavailable, match=r"127\.0\.0\.1") as caught:
        store.sessions()
    assert caught.value.retryable
    assert caught.value.__cause__ is not None
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    store.close()


def test_an_unknown_connection_option_is_a_setting_error():
    store = Store.open(f"postgresql://me:{SECRET}@127.0.0.1:1/db?no_such_option=1")
    with pytest.raises(ConfigError, match="no_such_option") as caught:
        store.sessions()
    assert SECRET not in str(caught.value)
    store.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://me:{SECRET}@host/db", "postgresql://***@host/db"),
        (f"postgresql://me:{SECRET}@@host/db", "postgresql://***@host/db"),
        (f"postgresql://host/db?password={SECRET}&x=1", "postgresql://host/db?password=***&x=1"),
        ("sqlite:////srv/journal.db", "sqlite:////srv/journal.db"),
    ],
)
def test_a_masked_url_shows_everything_but_the_credentials(url, shown):
    assert masked(url) == shown


def test_a_file_that_is_no_database_is_corrupt_and_named(tmp_path):
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is a text file, not a journal\n" * 100)
    store = Store.open(f"sqlite:///{path}")
    with pytest.raises(JournalCorrupt, match=str(path)) as caught:
        upgrade(store.engine)
    assert not caught.value.retryable
    assert path.read_bytes().startswith(b"this is a text file")
    store.close()


def test_a_damaged_file_is_corrupt_and_named(tmp_path):
    path = tmp_path / "journal.db"
    store = Store.open(f"sqlite:///{path}")
    upgrade(store.engine)
    for index in range(50):
        create(store, f"session-{index}")
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (os.path.getsize(path) - 4096))
    with pytest.raises(JournalCorrupt, match=str(path)):
        store.sessions()
    store.close()


def test_a_journal_without_its_tables_says_so(journal_url):
    store = Store.open(journal_url)
    with pytest.raises(JournalCorrupt, match="has not the tables"):
        store.sessions()
    store.close()


def test_a_read_only_journal_is_unavailable_for_writes_and_readable(store):
    create(store)
    pragma = "PRAGMA query_only=ON"
    setting = "SET default_transaction_read_only = on"
    sqlite = store.engine.dialect.name == "sqlite"
    with store.engine.connect() as connection:
        connection.exec_driver_sql(pragma if sqlite else setting)
        connection.commit()
    with pytest.raises(JournalUnavailable, match=r"read-?only"):
        store.attach("train", 1, INCARNATION)
    assert store.session("train").generation == 0


def test_a_connection_that_was_cut_is_replaced_at_the_next_call(postgres_server):
    with postgres_server.database() as url:
        store = Store.open(url)
        upgrade(store.engine)
        token = create(store)
        other = open_engine(url)
        with other.begin() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        other.dispose()
        with pytest.raises(JournalUnavailable):
            store.attach("train", token, INCARNATION)
        assert store.attach("train", token, INCARNATION).generation == 1
        store.close()


def test_text_that_a_database_cannot_keep_is_a_value_error(postgres_server):
    with postgres_server.database() as url:
        store = Store.open(url)
        upgrade(store.engine)
        register(store, "a")
        for session_id in ("nul \0 inside", "x" * 4000):
            with pytest.raises(JournalValueError):
                store.create_session(session_id, INCARNATION, b"h", "a")
        store.close()


@pytest.mark.parametrize(
    "recipe",
    [{"flags": object()}, {"image": b"bytes"}, {"scale": float("nan")}],
    ids=["object", "bytes", "nan"],
)
def test_a_recipe_that_is_not_json_is_a_value_error(store, recipe):
    token = create(store)
    with pytest.raises(JournalValueError, match="cannot keep a value"):
        store.record("train", token, [HandleCreated("stream", 16, 0, recipe, 1)])
    assert store.handles("train") == []


@pytest.mark.parametrize(
    ("session_id", "incarnation"),
    [("train", None), ("train", object()), ("\udc80", INCARNATION), (object(), INCARNATION)],
    ids=["missing", "object", "surrogate", "object-id"],
)
def test_an_argument_of_a_wrong_type_is_a_value_error(store, session_id, incarnation):
    register(store, "a")
    with pytest.raises(JournalValueError):
        store.create_session(session_id, incarnation, b"h", "a")
    assert store.sessions() == []


def test_a_user_without_rights_is_a_setting_error(postgres_server):
    with postgres_server.database() as url:
        store = Store.open(url)
        upgrade(store.engine)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP ROLE IF EXISTS visitor")
            connection.exec_driver_sql("CREATE ROLE visitor LOGIN")
        visitor = Store.open(url.replace("postgres:@", "visitor:@"))
        with pytest.raises(ConfigError, match="permission denied"):
            visitor.sessions()
        visitor.close()
        store.close()


def test_a_sqlite_journal_is_durable_private_and_in_wal_mode(tmp_path):
    path = tmp_path / "journal.db"
    store = Store.open(f"sqlite:///{path}")
    upgrade(store.engine)
    with store.engine.connect() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert settings == ["wal", 2, 1]
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()


def test_a_journal_on_a_network_file_system_is_warned_about(tmp_path, monkeypatch, caplog):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    assert network_file_system(tmp_path / "journal.db", str(mounts)) == "nfs4"
    assert network_file_system(tmp_path.parent / "journal.db", str(mounts)) is None
    assert network_file_system(tmp_path / "journal.db", str(tmp_path / "missing")) is None
    monkeypatch.setattr(database, "network_file_system", lambda path: "nfs4")
    with caplog.at_level(logging.WARNING, "outlast.session.database"):
        Store.open(f"sqlite:///{tmp_path / 'journal.db'}").close()
    assert "network file system (nfs4)" in caplog.text
