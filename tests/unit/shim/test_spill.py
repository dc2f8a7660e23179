"""The files of the log's overflow: what they hold, how much room they take, how they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import LogFull, SessionLost
from outlast.session.calllog import Batch, CallLog
from outlast.shim import spill as module
from outlast.shim.spill import FileSpill

PIECE = 1000  # bytes


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[FileSpill]:
    spill = FileSpill(tmp_path, PIECE)
    yield spill
    spill.reset()


def written(spill: FileSpill, *parts: bytes) -> int:
    """Write parts and return where they are once they are there."""
    writing = spill.write(parts)
    end = time.monotonic() + 30
    while not writing.done and time.monotonic() < end:
        spill.wait(1.0)
    assert writing.done
    if writing.error is not None:
        raise writing.error
    return writing.position


class SlowFile:
    """A temporary file whose writes wait until a test lets them go, and may fail."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.begun = threading.Event()
        self.go = threading.Event()
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        count: int = self._file.write(data[:100])  # a system may take a part at a time
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[SlowFile]:
    """Every file that is made from now on."""
    files: list[SlowFile] = []
    real = module.tempfile.TemporaryFile

    def make(**options: Any) -> SlowFile:
        files.append(SlowFile(real(**options)))
        return files[-1]

    monkeypatch.setattr(module.tempfile, "TemporaryFile", make)
    return files


def begin(spill: FileSpill, slow: list[SlowFile], *parts: bytes) -> Any:
    """Begin to write, and return when the file is at it."""
    writing = spill.write(parts)
    end = time.monotonic() + 30
    while not slow and time.monotonic() < end:
        spill.wait(0.01)
    assert slow[-1].begun.wait(30)
    return writing


def test_what_was_written_is_read_back(spill: FileSpill) -> None:
    parts = {written(spill, bytes([n]) * 300, b"end"): n for n in range(20)}

    for position, n in parts.items():
        assert spill.read(position, [300, 3]) == [bytes([n]) * 300, b"end"]


def test_the_caller_does_not_wait_for_the_disk(spill: FileSpill, slow: list[SlowFile]) -> None:
    writing = begin(spill, slow, b"x" * 250)
    behind = spill.write([b"y" * 50])
    assert not writing.done
    slow[0].go.set()
    while not behind.done:
        spill.wait(1.0)

    assert spill.read(writing.position, [250]) == [b"x" * 250]
    assert spill.read(behind.position, [50]) == [b"y" * 50]


def test_what_is_not_needed_any_more_takes_no_room(spill: FileSpill) -> None:
    positions = [written(spill, bytes([n]) * 300) for n in range(20)]

    spill.trim(positions[15])

    assert spill.size <= 300 * 5 + PIECE + 300
    assert [spill.read(positions[n], [300]) for n in range(15, 20)] == [
        [bytes([n]) * 300] for n in range(15, 20)
    ]
    spill.reset()
    assert spill.size == 0
    assert spill.read(written(spill, b"anew"), [4]) == [b"anew"]


def test_what_is_forgotten_while_it_is_written_disturbs_nothing(
    spill: FileSpill, slow: list[SlowFile]
) -> None:
    forgotten = begin(spill, slow, b"x" * 500)
    waiting = spill.write([b"y"])
    spill.reset()
    anew = spill.write([b"anew"])
    end = time.monotonic() + 30
    while not anew.done and time.monotonic() < end:
        for file in slow:
            file.go.set()
        spill.wait(0.01)

    assert spill.read(anew.position, [4]) == [b"anew"]
    assert not forgotten.done
    assert not waiting.done
    assert slow[0].closed


def test_a_log_that_stays_over_its_limit_takes_no_more_disk_than_it_holds(
    spill: FileSpill,
) -> None:
    log = CallLog(limit=1000, hard_limit=16_000, spill=spill)

    for seq in range(1, 500):
        while not log.check_room():
            log.wait(1.0)
        log.append(Batch(seq, 1, seq.to_bytes(4, "little"), [bytes(296)]))
        log.truncate(seq - 20)  # checkpoints keep up, but some batch is always spilled

    assert log.memory < log.bytes <= 6300
    assert spill.size <= log.bytes + PIECE + 300
    assert [int.from_bytes(log.parts(b)[0], "little") for b in log.since(0)] == list(
        range(480, 500)
    )


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogFull, match=r"gone.*LUPINE_SPILL_DIR"):
        written(FileSpill(tmp_path / "gone"), b"x")


def test_what_fails_takes_with_it_what_was_begun_behind_it_and_no_more(
    spill: FileSpill, slow: list[SlowFile]
) -> None:
    first = begin(spill, slow, b"x" * 500)
    second = spill.write([b"y"])
    slow[0].error = OSError(28, "No space left on device")
    slow[0].go.set()
    while not second.done:
        spill.wait(1.0)

    for writing in (first, second):
        with pytest.raises(LogFull, match="No space left on device"):
            raise writing.error
    slow[0].error = None
    assert spill.read(written(spill, b"later"), [5]) == [b"later"]


def test_a_file_that_cannot_be_read_back_is_named_with_the_reason(
    spill: FileSpill, slow: list[SlowFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = begin(spill, slow, b"x" * 300)
    slow[0].go.set()
    while not writing.done:
        spill.wait(1.0)

    slow[0].truncate(200)  # as a disk that loses data
    with pytest.raises(SessionLost, match=rf"{tmp_path}.*bytes 0 to 300.*too short"):
        spill.read(writing.position, [300])

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(slow[0], "read", fail, raising=False)
    with pytest.raises(SessionLost, match=rf"{tmp_path}.*Input/output error"):
        spill.read(writing.position, [300])


def test_the_program_is_told_once_that_its_log_is_on_disk(
    spill: FileSpill, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        written(spill, b"x")

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "LUPINE_REPLAY_LIMIT" in record.getMessage()
