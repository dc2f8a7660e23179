"""A damaged checkpoint is noticed and never continued from (E1, fallback to the one before)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.checkpoint_files import DATA, MANIFEST, flip_byte, folder_of, truncate
from helpers.program import Program, epochs_of, running, tape_of
from helpers.server_process import ServerProcess

from outlast.errors import SessionLost
from outlast.shim import driver as cuda


def damage(state: Path, which: slice, file: str, how: Callable[[Path], None]) -> None:
    """Damage a file of some epochs, newest first."""
    for epoch in epochs_of(state, "train")[which]:
        how(folder_of(state, epoch) / file)


@pytest.mark.slow
def test_damaged_newest_epoch_is_named_and_the_one_before_continues_bit_for_bit(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    digits = [1, 2]
    program.append(kernel, target, digits)
    older = program.checkpoint(server.state)
    for file, how in ((DATA, flip_byte), (DATA, truncate), (MANIFEST, flip_byte)):
        digits += [3, 4, 5]
        program.append(kernel, target, [3])
        newer = program.checkpoint(server.state)
        program.append(kernel, target, [4])
        program.sync()
        server.kill()
        damage(server.state, slice(1), file, how)
        server.start()

        program.append(kernel, target, [5])
        assert program.number(target) == tape_of(digits), how
        log = server.log_text()
        assert f"epoch {newer} cannot be used" in log
        assert f"epoch={older}" in log[log.rindex("cannot be used") :]
        # The damaged one is not used again.
        assert [row.seq for row in epochs_of(server.state, "train")] == [older]

    newest = program.checkpoint(server.state)
    assert [row.seq for row in epochs_of(server.state, "train")] == [newest, older]
    server.kill()
    server.start()
    assert program.number(target) == tape_of(digits)
    assert f"epoch={newest}" in server.log_text()


def test_only_epoch_damaged_replays_from_the_first_call(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    program.append(kernel, target, [1, 2])
    epoch = program.checkpoint(server.state)
    program.append(kernel, target, [3])
    server.kill()
    damage(server.state, slice(1), DATA, flip_byte)
    server.start()
    program.append(kernel, target, [4])
    assert program.number(target) == 1234
    assert f"epoch {epoch} cannot be used" in server.log_text()
    assert program.link.statistics()["replayed_calls"] >= epoch


def test_session_without_any_epoch_replays_from_the_first_call(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    digits = list(range(1, 10)) * 20
    program.append(kernel, target, digits)
    program.sync()
    assert epochs_of(server.state, "train") == []
    server.kill()
    server.start()
    program.append(kernel, target, [7])
    assert program.number(target) == tape_of([*digits, 7])


def test_no_epoch_that_reaches_the_log_ends_the_session_typed_and_for_good(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    for digit in (1, 2, 3):
        program.append(kernel, target, [digit])
        program.checkpoint(server.state)
    assert program.link._session.log.head > 1
    server.kill()
    damage(server.state, slice(None), DATA, flip_byte)
    server.start()

    assert cuda.cuCtxSynchronize()[0] == cuda.CUresult.CUDA_ERROR_UNKNOWN
    error = cuda.last_error()
    assert isinstance(error, SessionLost)
    assert "corrupt" in str(error)
    assert cuda.cuMemcpyDtoH(bytearray(8), target, 8)[0] == cuda.CUresult.CUDA_ERROR_UNKNOWN
    assert "no stored epoch can be continued from" in server.log_text()


def test_follower_of_a_session_whose_epochs_are_all_damaged_gets_no_empty_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        kernel, target = program.new_tape()
        program.append(kernel, target, [1])
        program.checkpoint(server.state)
    server.kill()
    damage(server.state, slice(None), DATA, flip_byte)
    server.start()
    with pytest.raises(SessionLost, match="is corrupt"):
        Program(server.endpoint, "train", tmp_path / "client")
    assert epochs_of(server.state, "train")
