"""The files of the log's overflow: what they hold, and how much room they take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import LogFull
from outlast.session.calllog import Batch, CallLog
from outlast.shim.spill import FileSpill

PIECE = 1000  # bytes


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[FileSpill]:
    spill = FileSpill(tmp_path, PIECE)
    yield spill
    spill.reset()


def test_what_was_written_is_read_back(spill: FileSpill) -> None:
    parts = {spill.write([bytes([n]) * 300, b"end"]): n for n in range(20)}

    for position, n in parts.items():
        assert spill.read(position, [300, 3]) == [bytes([n]) * 300, b"end"]


def test_what_is_not_needed_any_more_takes_no_room(spill: FileSpill) -> None:
    positions = [spill.write([bytes([n]) * 300]) for n in range(20)]

    spill.trim(positions[15])

    assert spill.size <= 300 * 5 + PIECE + 300
    assert [spill.read(positions[n], [300]) for n in range(15, 20)] == [
        [bytes([n]) * 300] for n in range(15, 20)
    ]
    spill.reset()
    assert spill.size == 0
    assert spill.read(spill.write([b"anew"]), [4]) == [b"anew"]


def test_a_log_that_stays_over_its_limit_takes_no_more_disk_than_it_holds(
    spill: FileSpill,
) -> None:
    log = CallLog(limit=1000, hard_limit=16_000, spill=spill)

    for seq in range(1, 500):
        log.append(Batch(seq, 1, seq.to_bytes(4, "little"), [bytes(296)]))
        log.truncate(seq - 20)  # checkpoints keep up, but some batch is always spilled

    assert log.memory < log.bytes <= 6300
    assert spill.size <= log.bytes + PIECE + 300
    assert [int.from_bytes(log.parts(b)[0], "little") for b in log.since(0)] == list(
        range(480, 500)
    )


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogFull, match="LUPINE_SPILL_DIR"):
        FileSpill(tmp_path / "gone").write([b"x"])
