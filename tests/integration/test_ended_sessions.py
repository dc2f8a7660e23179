"""What is left of a session that its program has ended: nothing."""

from __future__ import annotations

from pathlib import Path

from helpers.checkpoint_files import published
from helpers.program import running
from helpers.server_process import ServerProcess, assert_eventually


def test_an_ended_session_leaves_no_worker_and_no_checkpoint(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with ServerProcess(state, ["--checkpoint-interval", "0"]) as server:
        with running(server.endpoint, "train", tmp_path / "client", end=True) as program:
            program.new_tape()
            program.checkpoint(state)
            assert len(published(state)) == 1

        assert_eventually(lambda: not published(state), "its checkpoint is removed")
        assert_eventually(lambda: not server.session_workers(), "its worker ends")
