"""What is left of a session that its program has ended: nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from helpers.checkpoint_files import published
from helpers.program import running
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session.store import Store


def test_an_ended_session_leaves_no_worker_and_no_checkpoint(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ServerProcess(state, ["--checkpoint-interval", "0"]) as server:
        with running(server.endpoint, "train", tmp_path / "client", end=True) as program:
            program.new_tape()
            program.checkpoint(state)
            assert len(published(state)) == 1

        assert_eventually(lambda: not published(state), "its checkpoint is removed")
        assert_eventually(lambda: not server.session_workers(), "its worker ends")


def test_what_a_server_had_no_time_to_remove_is_removed_by_the_next(tmp_path: Path) -> None:
    """It ended between the row, which says that the session has ended, and the removal."""
    state = tmp_path / "state"
    url = f"sqlite:///{state / 'journal.db'}"
    with ServerProcess(state, ["--checkpoint-interval", "0"]) as server:
        for name in ("ended", "going-on"):
            with running(server.endpoint, name, tmp_path / "client") as program:
                program.new_tape()
                program.checkpoint(state)
        assert server.terminate() == 0
        stored = len(published(state))
        with closing(Store.open(url)) as store:
            store.end_session("ended", store.session("ended").token)

        server.start()

        assert_eventually(lambda: len(published(state)) < stored, "its checkpoints are removed")
        assert_eventually(lambda: not epoch_rows(state, "ended"), "its rows are removed")
        assert_eventually(lambda: not server.session_workers(), "the worker for it ends")
        assert epoch_rows(state, "going-on")
        with running(server.endpoint, "ended", tmp_path / "client", end=True) as program:
            program.new_tape()  # the name is free


def epoch_rows(state: Path, session: str) -> int:
    """Return how many epochs the journal has of a session."""
    with closing(sqlite3.connect(state / "journal.db")) as database:
        query = "select count(*) from epochs where session = ?"
        return int(database.execute(query, [session]).fetchone()[0])
