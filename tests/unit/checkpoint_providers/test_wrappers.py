"""Faults strike where and when their rules say, and what they hit stays usable."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path

import pytest

from outlast.checkpoint_providers import CheckpointProvider, StoredEpoch, open_provider
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.checkpoint_providers.manifest import DATA_FILE, MANIFEST_FILE
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.checkpoint_providers.samples import regions_of, snapshot_of
from outlast.checkpoint_providers.stages import Stage
from outlast.checkpoint_providers.testing import DEADLINE
from outlast.checkpoint_providers.wrappers import (
    FAULTS_VARIABLE,
    FaultAction,
    FaultRule,
    FaultyProvider,
)
from outlast.errors import (
    CheckpointCancelled,
    CheckpointCorrupt,
    CheckpointError,
    ConfigError,
)

SESSION = "conformance"


def faulty(tmp_path: Path, *rules: FaultRule) -> FaultyProvider:
    return FaultyProvider(DirectoryProvider(tmp_path), rules)


def verify(provider: CheckpointProvider, stored: StoredEpoch) -> None:
    with provider.open(stored.location, stored.digest) as reader:
        reader.verify()


def test_only_the_nth_save_fails_and_with_the_asked_error(tmp_path: Path) -> None:
    rule = FaultRule(Stage.FSYNC, FaultAction.FAIL, call=2, errno=errno.ENOSPC)
    provider = faulty(tmp_path, rule)
    provider.save(snapshot_of(seq=1))
    with pytest.raises(CheckpointError, match="No space left") as failure:
        provider.save(snapshot_of(seq=2))
    assert failure.value.fields["errno"] == errno.ENOSPC
    provider.save(snapshot_of(seq=2))
    assert [each.seq for each in provider.list(SESSION)] == [1, 2]


def test_a_write_fails_at_its_byte(tmp_path: Path) -> None:
    rule = FaultRule(Stage.WRITE_DATA, FaultAction.FAIL, byte=2 << 20)
    provider = faulty(tmp_path, rule)
    provider.save(snapshot_of(seq=1, regions=regions_of(1, [(2 << 20) - 1])))
    done: list[int] = []
    with pytest.raises(CheckpointError):
        provider.save(
            snapshot_of(seq=2, regions=regions_of(2, [3 << 20])),
            progress=lambda written, total: done.append(written),
        )
    assert done == [1 << 20, 2 << 20]


@pytest.mark.parametrize("stage", [s for s in Stage if s is not Stage.READ])
def test_a_hang_ends_when_the_save_is_cancelled(tmp_path: Path, stage: Stage) -> None:
    provider = faulty(tmp_path, FaultRule(stage, FaultAction.HANG, call=1))
    cancelled = threading.Event()
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    with pytest.raises(CheckpointCancelled):
        provider.save(snapshot_of(), cancelled)
    timer.join()
    assert list(tmp_path.rglob(".*")) == []
    verify(provider, provider.save(snapshot_of()))


def test_a_hang_without_cancellation_ends_by_release(tmp_path: Path) -> None:
    provider = faulty(tmp_path, FaultRule(Stage.RENAME, FaultAction.HANG))
    thread = threading.Thread(target=provider.save, args=(snapshot_of(),))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    provider.release()
    thread.join(DEADLINE)
    assert [each.seq for each in provider.list(SESSION)] == [1]


def test_the_published_epochs_are_whole_all_through_a_slow_save(tmp_path: Path) -> None:
    slow = [FaultRule(stage, FaultAction.SLOW, call=2, seconds=0.05) for stage in Stage]
    slow += [
        FaultRule(Stage.WRITE_DATA, FaultAction.SLOW, call=2, byte=n << 20, seconds=0.05)
        for n in range(1, 7)
    ]
    provider = faulty(tmp_path, *slow)
    sizes = [5 << 20, (1 << 20) + 3]
    first = provider.save(snapshot_of(seq=1, regions=regions_of(1, sizes)))
    saved: list[StoredEpoch] = []

    def save() -> None:
        saved.append(provider.save(snapshot_of(seq=2, regions=regions_of(2, sizes))))

    thread = threading.Thread(target=save)
    thread.start()
    polls = 0
    other = DirectoryProvider(tmp_path)
    while thread.is_alive():
        listed = other.list(SESSION)
        assert listed[0] == first
        for each in listed:
            verify(other, each)
        polls += len(listed) == 1
    thread.join()
    assert polls >= 10
    # Only now, with the next one verified, may the first go.
    provider.clean(SESSION, {saved[0].location})
    assert provider.list(SESSION) == saved


def test_a_bit_that_flips_while_writing_is_found_by_the_save(tmp_path: Path) -> None:
    rule = FaultRule(Stage.WRITE_DATA, FaultAction.FLIP, call=1, byte=1000, position=0)
    provider = faulty(tmp_path, rule)
    with pytest.raises(CheckpointCorrupt, match="chunk 0"):
        provider.save(snapshot_of())
    assert provider.list(SESSION) == []


@pytest.mark.parametrize("file", [DATA_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("action", [FaultAction.FLIP, FaultAction.TRUNCATE])
def test_damage_behind_the_saves_back_is_found_by_the_restore(
    tmp_path: Path, action: FaultAction, file: str
) -> None:
    provider = faulty(tmp_path, FaultRule(Stage.RENAME, action, call=2, file=file, position=-3))
    first = provider.save(snapshot_of(seq=1))
    second = provider.save(snapshot_of(seq=2))
    with pytest.raises(CheckpointCorrupt):
        verify(provider, second)
    verify(provider, first)


def test_reads_fail_and_rot_by_the_rules(tmp_path: Path) -> None:
    provider = faulty(
        tmp_path,
        FaultRule(Stage.READ, FaultAction.FAIL, call=1),
        FaultRule(Stage.READ, FaultAction.FLIP, call=3, bit=7),
    )
    stored = provider.save(snapshot_of())
    with pytest.raises(CheckpointError) as failure:
        verify(provider, stored)
    assert failure.value.fields["errno"] == errno.EIO
    verify(provider, stored)
    with pytest.raises(CheckpointCorrupt):
        verify(provider, stored)


def test_memory_has_no_files_to_damage() -> None:
    rule = FaultRule(Stage.RENAME, FaultAction.FLIP)
    with pytest.raises(ConfigError):
        FaultyProvider(MemoryProvider(), [rule]).save(snapshot_of())


def test_a_faulty_provider_is_as_durable_as_the_one_below(tmp_path: Path) -> None:
    assert faulty(tmp_path).durable
    assert not FaultyProvider(MemoryProvider(), []).durable


def test_a_check_goes_to_the_provider_below(tmp_path: Path) -> None:
    FaultyProvider(DirectoryProvider(tmp_path / "root"), []).check()
    assert (tmp_path / "root").is_dir()


def test_a_process_takes_its_faults_from_the_environment(tmp_path: Path) -> None:
    rules = [{"stage": "manifest", "action": "fail", "errno": "EDQUOT", "call": 1}]
    provider = open_provider(f"directory:{tmp_path}", None, {FAULTS_VARIABLE: json.dumps(rules)})
    with pytest.raises(CheckpointError) as failure:
        provider.save(snapshot_of())
    assert failure.value.fields["errno"] == errno.EDQUOT
    verify(provider, provider.save(snapshot_of()))
    plain = open_provider(f"directory:{tmp_path}", None, {FAULTS_VARIABLE: " "})
    assert isinstance(plain, DirectoryProvider)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '[{"stage": "rename"}]',
        '[{"action": "fail"}]',
        '[{"stage": "quiesce", "action": "fail"}]',
        '[{"stage": "rename", "action": "explode"}]',
        '[{"stage": "rename", "action": "fail", "errno": "EWHAT"}]',
        '[{"stage": "rename", "action": "fail", "call": "1"}]',
        '[{"stage": "rename", "action": "fail", "call": -1}]',
        '[{"stage": "rename", "action": "flip", "bit": 8}]',
        '[{"stage": "rename", "action": "flip", "file": "../x"}]',
        '[{"stage": "rename", "action": "slow", "seconds": -1}]',
        '[{"stage": "rename", "action": "slow", "seconds": NaN}]',
        '[{"stage": "rename", "action": "slow", "speed": 1}]',
        "[" * 100_000,
    ],
)
def test_faults_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        FaultyProvider.from_environment(MemoryProvider(), {FAULTS_VARIABLE: text})


def test_slowness_ends_when_the_save_is_cancelled(tmp_path: Path) -> None:
    provider = faulty(tmp_path, FaultRule(Stage.FSYNC, FaultAction.SLOW, seconds=DEADLINE))
    cancelled = threading.Event()
    cancelled.set()
    started = time.monotonic()
    with pytest.raises(CheckpointCancelled):
        provider.save(snapshot_of(), cancelled)
    assert time.monotonic() - started < DEADLINE / 2
