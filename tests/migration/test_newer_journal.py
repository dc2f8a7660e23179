"""A journal of a newer version is refused at once, named, and left as it is."""

from __future__ import annotations

import time

import pytest
from helpers.journal import create, journal_process
from sqlalchemy import text

from outlast.errors import JournalNewer
from outlast.migrations import current_revision, downgrade, head_revision, upgrade
from outlast.session.database import open_engine
from outlast.session.store import Store

NEWER = "9999"


@pytest.fixture
def newer_engine(journal_url):
    """Give a journal with a session that a newer version has upgraded."""
    engine = open_engine(journal_url)
    upgrade(engine)
    create(Store(engine))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sessions ADD COLUMN from_the_future TEXT"))
        connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": NEWER})
    yield engine
    engine.dispose()


def contents(engine):
    with engine.connect() as connection:
        return (
            connection.execute(text("SELECT * FROM sessions")).all(),
            connection.execute(text("SELECT * FROM alembic_version")).all(),
        )


@pytest.mark.parametrize(
    "action",
    [upgrade, current_revision, lambda engine: downgrade(engine, "base")],
    ids=["upgrade", "current_revision", "downgrade"],
)
def test_a_newer_journal_is_refused_and_nothing_is_written(newer_engine, action):
    before = contents(newer_engine)
    begun = time.monotonic()
    with pytest.raises(JournalNewer, match="journal written by a newer version") as caught:
        action(newer_engine)
    assert time.monotonic() - begun < 2
    assert (caught.value.revision, caught.value.head) == (NEWER, head_revision())
    message = str(caught.value)
    assert NEWER in message
    assert f"outlast journal downgrade {head_revision()}" in message
    assert contents(newer_engine) == before


def test_a_server_that_starts_on_a_newer_journal_exits_with_an_error(newer_engine, journal_url):
    before = contents(newer_engine)
    with journal_process("start", journal_url) as server:
        assert server.stdout.readline() == "ready\n"
        begun = time.monotonic()
        server.stdin.write("go\n")
        server.stdin.flush()
        assert server.wait(10) == 1
        assert time.monotonic() - begun < 2
    assert contents(newer_engine) == before


def test_code_works_on_tables_that_a_newer_version_has_added_to(newer_engine):
    """During a rolling restart old and new servers share the journal."""
    store = Store(newer_engine)
    assert store.attach("train", 1, b"client process 1").generation == 1
    assert create(store, "another") == 1
    assert store.claim("train", "a").token == 2
