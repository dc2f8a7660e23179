"""Killed while a checkpoint is written: the new one or the one before is whole (E1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.checkpoint_files import unfinished
from helpers.program import running
from helpers.server_process import ServerProcess, assert_eventually
from helpers.witness import Witness

STAGES = ("write-data", "manifest", "verify", "rename")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_kill_at_every_stage_of_a_checkpoint_leaves_one_to_go_on_from(tmp_path: Path) -> None:
    arguments = ["--checkpoint-interval", "0"]
    for stage in STAGES:
        state = tmp_path / stage
        kill = [{"stage": stage, "action": "kill", "call": 2, "byte": 1 << 20}]
        if stage != "write-data":
            del kill[0]["byte"]
        environment = {"LUPINE_CHECKPOINT_FAULTS": json.dumps(kill)}
        with (
            ServerProcess(state, arguments, environment) as server,
            running(server.endpoint, "train", tmp_path / f"{stage}-client") as program,
        ):
            witness = Witness(program, 24)
            witness.go_on(1)
            good = program.checkpoint(state)
            witness.go_on(2)
            program.request_epoch()
            assert_eventually(lambda s=server: "worker died" in s.log_text(), stage)  # type: ignore[misc]
            witness.go_on(3)
            witness.check()
            assert f"epoch={good}" in server.log_text(), stage
            program.checkpoint(state)
            assert_eventually(lambda s=state: unfinished(s) == [], f"{stage}: nothing is left")  # type: ignore[misc]
