"""SIGKILL at any moment of a save leaves the epoch before it, or the new one, whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint_providers import StoredEpoch
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.samples import regions_of, snapshot_of

SIZES = (3, 5 << 20, 1, (1 << 20) + 11)
SESSION = "conformance"
WRITES = 7
STAGES = ("open-temp", "fsync", "manifest", "verify", "rename")


class Saver:
    """Has checkpoints saved in children that die, and checks what is left."""

    def __init__(self, root: Path) -> None:
        self.provider = DirectoryProvider(root)
        self.seq = 1
        self.token = 1
        self.worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_worker.py")), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.newest = self.save_whole()

    def close(self) -> None:
        self.worker.kill()
        self.worker.communicate()

    def save_whole(self) -> StoredEpoch:
        regions = regions_of(self.seq, SIZES)
        return self.provider.save(snapshot_of(seq=self.seq, token=self.token, regions=regions))

    def child(self, **job: Any) -> dict[str, int]:
        """Let a child save the next epoch."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.seq += 1
        self.worker.stdin.write(json.dumps(job | {"seq": self.seq, "token": self.token}) + "\n")
        self.worker.stdin.flush()
        ended: dict[str, int] = json.loads(self.worker.stdout.readline())
        return ended

    def recover(self) -> bool:
        """Do what the next server does; return whether the child's epoch was published."""
        self.token += 1
        listed = self.provider.list(SESSION)
        assert [each.seq for each in listed] in ([self.newest.seq], [self.newest.seq, self.seq])
        for each in listed:
            with self.provider.open(each.location, each.digest) as reader:
                reader.verify()
                for i, region in enumerate(regions_of(each.seq, SIZES)):
                    assert reader.read(i) == region.buffer
        published = len(listed) == 2
        self.newest = listed[-1]
        self.provider.clean(SESSION, {self.newest.location})
        assert self.provider.list(SESSION) == [self.newest]
        assert list(self.provider.root.rglob(".*")) == []
        return published


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    saver = Saver(tmp_path / "root")
    yield saver
    saver.close()


def test_a_kill_at_any_stage_leaves_the_epoch_before(saver: Saver) -> None:
    rules: list[dict[str, Any]] = [{"stage": stage} for stage in STAGES]
    rules += [{"stage": "write-data", "byte": n << 20} for n in range(WRITES)]
    for rule in rules:
        ended = saver.child(rule=rule | {"action": "kill"})
        assert ended["exit"] == -signal.SIGKILL
        assert not saver.recover()
    saver.seq += 1
    whole = saver.save_whole()
    assert whole.seq == saver.seq
    saver.provider.clean(SESSION, {whole.location})
    writers = (saver.provider.root / whole.location).parents[1]
    assert [folder.name for folder in writers.iterdir()] == [f"{saver.token:020d}"]


def test_a_kill_at_any_line_leaves_one_of_the_two_epochs(saver: Saver) -> None:
    saver.token += 1  # as for every child below, the first save under its token
    lines = saver.child(line=0)["lines"]
    assert saver.recover()
    assert lines > 100
    # All lines from the last write on, where the epoch is completed and published, by 4.
    points = [*range(1, lines - 120, lines // 15), *range(lines - 120, lines, 4), lines]
    published = []
    for line in points:
        assert saver.child(line=line)["exit"] == -signal.SIGKILL
        published.append(saver.recover())
    assert published == sorted(published)
    assert set(published) == {False, True}


def test_a_kill_at_a_random_moment_leaves_one_of_the_two_epochs(saver: Saver) -> None:
    generator = random.Random(os.environ.get("OUTLAST_TEST_SEED", "1"))
    for _ in range(20):
        assert saver.child(after=generator.uniform(0, 0.06))["exit"] in (0, -signal.SIGKILL)
        saver.recover()
