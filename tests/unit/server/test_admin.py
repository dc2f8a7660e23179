"""The operator's journal commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast import cli, migrations
from outlast.checkpoint_providers import StoredEpoch
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.samples import snapshot_of
from outlast.session.database import open_engine
from outlast.session.rows import EpochRow
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


def test_a_session_of_a_living_server_is_not_ended(journal, capsys):
    assert cli.main(["journal", "end", "training", "--database", journal]) == 2
    said = capsys.readouterr().err
    assert "holds session 'training': stop it first" in said
    assert "the lease ends in" in said


def test_checkpoints_that_lie_elsewhere_are_named_and_not_forgotten(journal, tmp_path, capsys):
    store = Store.open(journal)
    token = store.session("training").token
    stored = DirectoryProvider(tmp_path / "shared").save(snapshot_of("training", token=token))
    store.commit_epoch("training", token, epoch_row(stored))
    store.release_server("server-a")
    command = ["journal", "end", "training", "--database", journal]
    assert cli.main([*command, "--provider", f"directory:{tmp_path}/checkpoints"]) == 0
    assert "1 of its checkpoints are not at" in capsys.readouterr().out
    assert store.leftovers("server-a") == ["training"]

    assert cli.main([*command, "--provider", f"directory:{tmp_path}/shared"]) == 0
    assert capsys.readouterr().out == "session 'training' has ended\n"
    assert store.leftovers("server-a") == []
    store.close()


def test_an_ended_session_leaves_neither_objects_nor_checkpoints(journal, tmp_path, capsys):
    store = Store.open(journal)
    token = store.session("training").token
    provider = DirectoryProvider(tmp_path / "checkpoints")
    stored = provider.save(snapshot_of("training", token=token))
    store.commit_epoch("training", token, epoch_row(stored))
    store.release_server("server-a")
    command = ["journal", "end", "training", "--database", journal]
    assert cli.main([*command, "--provider", f"directory:{tmp_path}/checkpoints"]) == 0
    assert capsys.readouterr().out == "session 'training' has ended\n"
    assert store.session("training").state == "ended"
    assert store.epochs("training", unusable=True) == []
    assert provider.list("training") == []
    store.close()


def epoch_row(stored: StoredEpoch) -> EpochRow:
    return EpochRow(
        epoch=1,
        seq=stored.seq,
        token=stored.token,
        provider="directory",
        location=stored.location,
        size=stored.size,
        digest=stored.digest,
        verified=True,
        created_at=0.0,
    )


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


def test_what_is_kept_is_asked_of_a_folder_that_a_server_has_used(tmp_path, capsys):
    assert cli.main(["keeper", "list", "--state", str(tmp_path / "mistyped")]) == 2
    assert "no server has used the state folder" in capsys.readouterr().err
    (tmp_path / "server.lock").touch()
    assert cli.main(["keeper", "list", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing is kept\n"
