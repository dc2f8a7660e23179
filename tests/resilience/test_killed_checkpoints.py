"""Killed while a checkpoint is written: the new one or the one before is whole (E1)."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from helpers.checkpoint_files import unfinished
from helpers.program import Program, running, tape_of
from helpers.server_process import ServerProcess, assert_eventually

#: A size whose saving takes long enough to be hit at random.
BULK = 24 << 20  # bytes
STAGES = ("write-data", "manifest", "verify", "rename")


class Witness:
    """A program that knows what its device memory must hold."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kernel, self.target = program.new_tape()
        self.bulk = program.alloc(BULK)
        self.digits: list[int] = []

    def go_on(self, digit: int) -> None:
        """Change everything."""
        self.digits.append(digit)
        self.program.append(self.kernel, self.target, [digit])
        pattern = bytes([digit + 1]) * (1 << 20)
        self.program.write(self.bulk + (digit << 20), pattern)

    def check(self) -> None:
        """Check everything."""
        assert self.program.number(self.target) == tape_of(self.digits)
        data = self.program.read(self.bulk, BULK)
        for digit in range(BULK >> 20):
            expected = digit + 1 if digit in self.digits else 0
            piece = data[digit << 20 : (digit + 1) << 20]
            assert piece.count(expected) == len(piece), f"piece {digit}"


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
            witness = Witness(program)
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


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_kill_at_random_moments_of_checkpoints_loses_nothing(
    server: ServerProcess, program: Program
) -> None:
    chance = random.Random(354)
    witness = Witness(program)
    for digit in range(4):
        witness.go_on(digit)
        program.checkpoint(server.state)
        witness.go_on(digit + 8)
        program.request_epoch()
        time.sleep(chance.uniform(0.0, 0.08))
        server.kill()
        server.start()
        witness.check()
