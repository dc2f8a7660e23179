"""The operator's journal commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast import cli, migrations
from outlast.session.database import open_engine
from outlast.session.store import Store


@pytest.fixture
def journal(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/journal.db"
    engine = open_engine(url)
    migrations.upgrade(engine)
    store = Store(engine)
    store.register_server("server-a", "host", "tcp://127.0.0.1:1", 30.0)
    row = store.create_session("training", b"i" * 16, b"h" * 32, "server-a")
    store.park("training", row.token, 777, "call 777 (LAUNCH) ended its worker by SIGSEGV")
    store.close()
    return url


def test_the_listing_names_each_session_with_its_state_and_reason(journal, capsys):
    assert cli.main(["journal", "sessions", "--database", journal]) == 0
    out = capsys.readouterr().out
    assert "training" in out
    assert "parked" in out
    assert "call 777 (LAUNCH)" in out


def test_an_unparked_session_is_active_again(journal, capsys):
    assert cli.main(["journal", "unpark", "training", "--database", journal]) == 0
    store = Store.open(journal)
    assert store.session("training").state == "active"
    store.close()


def test_unparking_an_unknown_session_fails_in_one_line(journal, capsys):
    assert cli.main(["journal", "unpark", "nobody", "--database", journal]) == 1
    assert "there is no session 'nobody'" in capsys.readouterr().err


def test_the_columns_of_the_listing_stand_below_their_titles(journal, capsys):
    store = Store.open(journal)
    store.create_session("n" * 60, b"i" * 16, b"h" * 32, "server-a")
    store.close()
    assert cli.main(["journal", "sessions", "--database", journal]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    column = title.index("STATE")
    assert {row[column:].split()[0] for row in rows} == {"active", "parked"}


def test_a_journal_in_use_is_not_downgraded(journal, capsys):
    assert cli.main(["journal", "downgrade", "base", "--database", journal]) == 2
    assert "server-a at tcp://127.0.0.1:1 uses the journal" in capsys.readouterr().err
    store = Store.open(journal)
    assert [row.id for row in store.sessions()] == ["training"]
    store.close()


def test_a_downgrade_takes_the_journal_back(journal, capsys):
    store = Store.open(journal)
    store.release_server("server-a")
    store.close()
    assert cli.main(["journal", "downgrade", "base", "--database", journal]) == 0
    engine = open_engine(journal)
    assert migrations.current_revision(engine) is None
    engine.dispose()
