"""Large copies whose log is short of memory, over links and workers that are lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import Program, ok, running
from helpers.server_process import ServerProcess

from outlast.errors import LogFull, SessionLost
from outlast.shim import driver as cuda
from outlast.shim.spill import FileSpill

MIB = 1 << 20
SIZE = 24 * MIB


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    """A program whose log has room for a third of what it copies at once."""
    limits = {"replay_limit": 8 * MIB, "replay_hard_limit": 1024 * MIB}
    with running(
        server.endpoint, "train", tmp_path / "client", spill_dir=tmp_path, **limits
    ) as started:
        yield started


def pattern(number: int) -> bytes:
    """Return bytes of which no two pieces are alike."""
    return b"".join(bytes([number, piece]) * (MIB // 2) for piece in range(SIZE // MIB))


def copy(address: int, source: bytearray, number: int) -> None:
    """Copy a pattern from memory that holds something else right after."""
    source[:] = pattern(number)
    ok(cuda.cuMemcpyHtoD(address, source, SIZE))
    source[:] = bytes(SIZE)


def test_connections_lost_in_the_middle_change_no_byte(program: Program) -> None:
    address, source = program.alloc(SIZE), bytearray(SIZE)
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(0.05):
            program.link.reconnect()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for number in range(1, 5):
            copy(address, source, number)
            assert program.read(address, SIZE) == pattern(number)
    finally:
        over.set()
        thread.join()
    assert program.reconnects


def test_what_is_sent_again_is_what_was_copied(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    addresses, source = [program.alloc(SIZE) for _ in range(3)], bytearray(SIZE)
    for number, address in enumerate(addresses):
        copy(address, source, number)
    # Two epochs, and the log forgets; what comes now goes into the memory of what was.
    for _ in range(2):
        program.sync()
        program.checkpoint(tmp_path / "state")
    for number, address in enumerate(addresses):
        copy(address, source, 10 + number)
    program.sync()

    server.kill()
    server.start()

    assert [program.read(a, SIZE) == pattern(10 + n) for n, a in enumerate(addresses)] == [True] * 3
    assert program.link.statistics()["replayed_calls"]


def test_a_program_that_copies_faster_than_it_can_be_saved_gets_on(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"replay_limit": 4 * MIB, "replay_hard_limit": 12 * MIB}
    with running(
        server.endpoint, "train", tmp_path / "client", spill_dir=tmp_path, **limits
    ) as program:
        address, source = program.alloc(SIZE), bytearray(SIZE)
        for number in range(3):  # six times what the log holds
            copy(address, source, number)

        assert program.read(address, SIZE) == pattern(2)
        assert program.link._session.log.bytes <= 14 * MIB
    spills = [r for r in caplog.records if "LUPINE_REPLAY_LIMIT" in r.getMessage()]
    assert len(spills) == 1


def test_a_program_that_cannot_be_saved_is_told_why_it_cannot_go_on(tmp_path: Path) -> None:
    rules = [{"stage": "write-data", "action": "fail", "errno": "ENOSPC"}]
    faults = {"LUPINE_CHECKPOINT_FAULTS": json.dumps(rules)}
    arguments = ["--checkpoint-interval", "0"]
    limits = {"replay_limit": 4 * MIB, "replay_hard_limit": 12 * MIB}
    with (
        ServerProcess(tmp_path / "state", arguments, faults) as server,
        running(
            server.endpoint, "train", tmp_path / "client", spill_dir=tmp_path, **limits
        ) as program,
    ):
        address, source = program.alloc(SIZE), bytearray(pattern(1))
        (result,) = cuda.cuMemcpyHtoD(address, source, SIZE)

        assert result == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        error = cuda.last_error()
        assert isinstance(error, LogFull)
        assert "hard limit" in str(error)
        assert "No space left on device" in str(error)


def test_a_log_that_cannot_be_read_back_ends_the_session_with_the_reason(
    server: ServerProcess, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, source = program.alloc(SIZE), bytearray(SIZE)
    copy(address, source, 1)
    program.sync()

    def fail(*_: object) -> None:
        raise SessionLost("the file of the log is gone: Input/output error")

    monkeypatch.setattr(FileSpill, "read", fail)
    server.kill()
    server.start()
    (result,) = cuda.cuCtxSynchronize()

    assert result
    assert isinstance(cuda.last_error(), SessionLost)
    assert "Input/output error" in str(cuda.last_error())
