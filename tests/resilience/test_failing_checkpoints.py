"""A checkpoint that cannot be written is reported; the session and the last one stand (E1, E2)."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from helpers import kernels
from helpers.checkpoint_files import DATA, MANIFEST, published, unfinished
from helpers.program import epochs_of, running, wait_for_epoch
from helpers.server_process import DEVICE, ServerProcess, assert_eventually

#: How long a slow stage takes; what is not held up by it takes less.
SLOW = 0.4 if DEVICE == "emulated" else 1.0  # seconds
STAGES = ("open-temp", "write-data", "fsync", "manifest", "rename")


def server_with(state: Path, rules: list[dict[str, Any]], *arguments: str) -> ServerProcess:
    """Return a server whose checkpoints fail by these rules."""
    environment = {"LUPINE_CHECKPOINT_FAULTS": json.dumps(rules)}
    return ServerProcess(state, ["--checkpoint-interval", "0", *arguments], environment)


def test_full_disk_at_any_stage_fails_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    state = tmp_path / "state"
    # Between two that succeed, one fails at each stage; another one is damaged as it is written.
    rules: list[dict[str, Any]] = [
        {"stage": stage, "action": "fail", "errno": "ENOSPC", "call": 2 * number + 2}
        for number, stage in enumerate(STAGES)
    ]
    rules.append({"stage": "verify", "action": "flip", "call": 2 * len(STAGES) + 2})
    with (
        server_with(state, rules) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        kernel, target = program.new_tape()
        value = 0
        for number in range(len(rules)):
            program.append(kernel, target, [number])
            good = program.checkpoint(state)
            program.append(kernel, target, [number])
            failures = server.log_text().count("epoch failed")
            program.request_epoch()
            assert_eventually(
                lambda n=failures: server.log_text().count("epoch failed") > n,  # type: ignore[misc]
                "the failure is reported",
            )
            assert epochs_of(state, "train")[0].seq == good
            assert unfinished(state) == []
            value = value * 100 + number * 11
            assert program.number(target) == value
        assert "No space left on device" in server.log_text()
        last = program.checkpoint(state)
        server.environment.clear()
        server.kill()
        server.start()
        assert program.number(target) == value
        assert f"epoch={last}" in server.log_text()


def test_slow_checkpoint_holds_up_no_call_and_only_complete_ones_are_ever_published(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    slow = [{"stage": "write-data", "action": "slow", "seconds": SLOW}]
    slow.append({"stage": "verify", "action": "slow", "seconds": SLOW})
    stop = threading.Event()
    incomplete: list[Path] = []
    counts: set[int] = set()

    def watch() -> None:
        while not stop.wait(0.002):
            folders = published(state)
            counts.add(len(folders))
            for folder in folders:
                files = {path.name for path in folder.iterdir()}
                if files != {DATA, MANIFEST} and folder.exists():
                    incomplete.append(folder)

    with (
        server_with(state, slow, "--lease-ttl", "3") as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        kernel, target = program.new_tape()
        program.checkpoint(state)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for digit in range(1, 6):
                program.append(kernel, target, [digit])
                begun = time.monotonic()
                seq = program.request_epoch()
                program.link.request_epoch()  # a second one on top of the first
                program.append(kernel, target, [0])
                program.sync()
                assert time.monotonic() - begun < SLOW, "calls waited for the checkpoint"
                wait_for_epoch(state, "train", seq)
                rows = epochs_of(state, "train")
                assert len(rows) <= 3  # the newest's row is there before the oldest's is marked
                assert [row.seq for row in rows] == sorted({row.seq for row in rows}, reverse=True)
        finally:
            stop.set()
            watcher.join()
        assert incomplete == []
        assert min(counts) >= 1, "at some moment there was no checkpoint"
        assert program.number(target) == 1020304050
        server.environment.clear()
        server.kill()
        server.start()
        assert program.number(target) == 1020304050


def test_checkpoint_that_the_device_is_too_busy_for_is_given_up_and_the_next_one_succeeds(
    tmp_path: Path,
) -> None:
    """E4: the session goes on at once, and says why there is no epoch."""
    state = tmp_path / "state"
    with (
        server_with(state, [], "--epoch-deadline", "0.2") as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        linger = program.kernel(program.load(kernels.PTX), "linger")
        kernel, target = program.new_tape()
        program.append(kernel, target, [1])
        first = program.checkpoint(state)
        program.launch(linger, (("u64", int(1.5e9)),))
        program.append(kernel, target, [2])
        program.link.request_epoch()
        reason = "epoch failed: the device did not become idle within 0.2 s"
        assert_eventually(lambda: reason in server.log_text(), "it is given up")
        program.append(kernel, target, [3])
        assert program.number(target) == 123
        assert [row.seq for row in epochs_of(state, "train")][-1] == first
        assert program.checkpoint(state) > first
        server.kill()
        server.start()
        assert program.number(target) == 123
