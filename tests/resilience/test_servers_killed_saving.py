"""SIGKILL for a server at a hundred random points of its checkpoints: nothing is lost (E1)."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest
from helpers.checkpoint_files import unfinished
from helpers.program import epochs_of, wait_for_epoch
from helpers.server_process import ServerProcess
from helpers.side_by_side import Neighbour, side_by_side
from helpers.witness import Witness

from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.wrappers import FAULTS_VARIABLE

POINTS = 100
#: One kill of the server hits the checkpoint of each session at a point of its own.
SESSIONS = 10
PIECES = 5  # of bulk: two chunks with a hash each
STEP = 0.03  # seconds
#: Every stage takes a while, so that the points are spread over all of them.
SLOWED = [
    {"stage": stage, "action": "slow", "seconds": STEP, "byte": piece << 20}
    for stage, piece in [
        ("write-data", 0),
        ("write-data", 2),
        ("write-data", 4),
        ("fsync", 0),
        ("manifest", 0),
        ("verify", 0),
        ("rename", 0),
    ]
]


class Saver:
    """A session whose checkpoints are interrupted."""

    def __init__(self, program: Neighbour, state: Path) -> None:
        self.session = program.link.session_id
        self._program = program
        self._state = state
        program.use()
        self._witness = Witness(program, PIECES)
        #: Seqs of the newest epoch that is whole for sure, and of the one behind it.
        self._whole = self._begun = program.request_epoch()

    def settle(self) -> None:
        """Wait for the first epoch."""
        wait_for_epoch(self._state, self.session, self._whole)

    def begin(self, digit: int) -> None:
        """Go on, and have the next checkpoint begin."""
        self._program.use()
        self._witness.go_on(digit)
        self._begun = self._program.request_epoch()

    @property
    def finished(self) -> bool:
        """Whether the last checkpoint that was begun has been committed."""
        return self._whole == self._begun

    def touch(self) -> None:
        """Make a call beside the checkpoint: one that is asked for begins between two calls."""
        self._program.use()
        self._program.sync()

    def examine(self, provider: DirectoryProvider, left: set[Path]) -> bool:
        """Check what the dead server stored; return whether it was in the middle of it.

        Parameters
        ----------
        left : set of Path
            What is unfinished since this kill.
        """
        committed = epochs_of(self._state, self.session)
        assert committed[0].seq in (self._whole, self._begun)
        self._whole = committed[0].seq
        published = provider.list(self.session)
        for epoch in published:
            with provider.open(epoch.location, epoch.digest) as reader:
                reader.verify()
        locations = {row.location for row in committed}
        assert locations <= {epoch.location for epoch in published}
        folder = (provider.root / committed[0].location).parents[1]
        halfway = any(path.is_relative_to(folder) for path in left)
        return halfway or (published[-1].seq == self._begun and not self.finished)

    def check(self, server: ServerProcess) -> None:
        """Check what the next server restored, and from which epoch."""
        self._program.use()
        self._witness.check()
        pattern = rf"session restored .*epoch=(\d+) kept=False session={self.session}\n"
        assert int(re.findall(pattern, server.log_text())[-1]) == self._whole


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_at_a_hundred_random_points_of_checkpoints_loses_nothing(tmp_path: Path) -> None:
    """E1: all hashes of what is left are right, and each session goes on from the newest of it."""
    chance = random.Random(354)
    state = tmp_path / "state"
    provider = DirectoryProvider(state / "checkpoints")
    arguments = ["--checkpoint-interval", "0"]
    names = [f"session-{number}" for number in range(SESSIONS)]
    with (
        ServerProcess(state, arguments, {FAULTS_VARIABLE: json.dumps(SLOWED)}) as server,
        side_by_side(server.endpoint, names, tmp_path / "client") as programs,
    ):
        savers = [Saver(program, state) for program in programs]
        for saver in savers:
            saver.settle()
        points, span = 0, STEP * len(SLOWED)
        while points < POINTS:
            before = set(unfinished(state))
            begin_at_random(savers, chance, span)
            if chance.random() < 0.5:
                server.kill_workers()  # a moment before their gateway
            server.kill()
            left = set(unfinished(state)) - before
            points += sum(saver.examine(provider, left) for saver in savers)
            span *= wider(sum(saver.finished for saver in savers))
            server.start()
            for saver in savers:
                saver.check(server)


def wider(finished: int) -> float:
    """Return by what the next span is to grow, so that few checkpoints come to their end in it."""
    return 0.85 if finished else 1.1


def begin_at_random(savers: list[Saver], chance: random.Random, span: float) -> None:
    """Have each save begin at a random moment of a span that is about as long as it takes."""
    waiting = sorted(
        ((chance.uniform(0, 0.9 * span), saver) for saver in savers), key=lambda pair: pair[0]
    )
    begun: list[Saver] = []
    start = time.monotonic()
    while (passed := time.monotonic() - start) < span or waiting:
        while waiting and waiting[0][0] <= passed:
            begun.append(waiting.pop(0)[1])
            begun[-1].begin(chance.randrange(10))
        for saver in begun:
            saver.touch()
        time.sleep(STEP / 10)
