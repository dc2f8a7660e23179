"""Servers that start at once on one journal: all come up, one applies the migrations."""

from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import ExitStack

import pytest
from helpers.journal import TTL, create, journal_process, register
from sqlalchemy import inspect

from outlast.errors import JournalCorrupt, JournalUnavailable, JournalValueError
from outlast.migrations import current_revision, head_revision, runner, upgrade
from outlast.session.database import open_engine
from outlast.session.models import metadata
from outlast.session.store import Store

SERVERS = 5
DEADLINE = 45.0  # seconds


@pytest.fixture
def engine(journal_url):
    engine = open_engine(journal_url)
    yield engine
    engine.dispose()


def tables(engine):
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names()) - {"alembic_version"}


def test_five_servers_that_start_at_once_on_an_empty_database_all_come_up(journal_url, engine):
    with ExitStack() as stack:
        servers = [
            stack.enter_context(journal_process("start", journal_url)) for _ in range(SERVERS)
        ]
        for server in servers:
            assert server.stdout.readline() == "ready\n"
        for server in servers:
            server.stdin.write("go\n")
            server.stdin.flush()
        outcomes = sorted(server.communicate(timeout=DEADLINE)[0] for server in servers)
        assert [server.returncode for server in servers] == [0] * SERVERS
    assert outcomes == ["applied\n"] + ["found\n"] * (SERVERS - 1)
    assert current_revision(engine) == head_revision()


def test_threads_of_one_process_that_upgrade_at_once_all_succeed(journal_url, engine):
    together = threading.Barrier(3)
    outcomes = []

    def start():
        mine = open_engine(journal_url)
        together.wait()
        outcomes.append(upgrade(mine))
        mine.dispose()

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(outcomes) == [False, False, True]
    assert current_revision(engine) == head_revision()


def test_after_a_server_is_killed_while_it_migrates_the_next_start_completes(journal_url, engine):
    with journal_process("die_migrating", journal_url, "CREATE TABLE") as victim:
        assert victim.wait(DEADLINE) == -signal.SIGKILL
    assert tables(engine) == set()
    assert upgrade(engine)
    assert tables(engine) == set(metadata.tables)
    store = Store(engine)
    assert create(store) == 1


def test_an_upgraded_journal_is_left_as_it_is(engine):
    assert upgrade(engine)
    store = Store(engine)
    create(store)
    before = store.session("train")
    assert not upgrade(engine)
    assert store.session("train") == before


def test_waiting_for_another_upgrade_is_bounded_and_reported(journal_url, engine, caplog):
    other = open_engine(journal_url)
    with other.connect() as connection, connection.begin():
        if other.dialect.name == "postgresql":
            lock = runner.ADVISORY_LOCK
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")
        begun = time.monotonic()
        with (
            caplog.at_level(logging.INFO, "outlast.migrations.runner"),
            pytest.raises(JournalUnavailable, match=r"upgrade lock for 0\.3 s") as caught,
        ):
            upgrade(engine, timeout=0.3)
        assert 0.3 <= time.monotonic() - begun < 5
    assert caught.value.retryable
    assert "Waiting for another server that upgrades the journal" in caplog.text
    other.dispose()
    assert upgrade(engine)


def test_a_thread_that_waits_for_another_threads_upgrade_gives_up_in_time(engine):
    with (
        runner._alembic,
        pytest.raises(JournalUnavailable, match=r"upgrade lock for 0\.1 s"),
    ):
        upgrade(engine, timeout=0.1)


def test_tables_that_no_migration_made_are_not_built_upon(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE handles (id INTEGER)")
    with pytest.raises(JournalCorrupt, match="handles"):
        upgrade(engine)
    assert tables(engine) == {"handles"}


def test_foreign_keys_are_enforced_again_after_an_upgrade(engine):
    upgrade(engine)
    store = Store(engine)
    register(store, "a", ttl=TTL)
    with pytest.raises(JournalValueError, match=r"(?i)foreign key"), engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO epochs (session, epoch, seq, token, provider, location, size, digest, "
            "verified, created_at) VALUES ('none', 1, 1, 1, 'd', 'l', 1, 'd', true, 0)"
        )
