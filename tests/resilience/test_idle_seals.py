"""A worker that is killed while its session is idle costs nothing but the start of another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ptx
from helpers.keeper import end_keeper, keeper_pids
from helpers.keeper import held as held_of
from helpers.program import Program, running, tape_of
from helpers.server_process import ServerProcess, assert_eventually, kill

from outlast.shim import driver as cuda

SIZE = 3 << 20
#: Kills a worker at the moment at which its session stops being at rest, if it is told to.
HOOKS = """
import os, pathlib, signal, sys
if "outlast.server.worker" in " ".join(sys.orig_argv):
    from outlast.server.deposits import Deposit
    disturb = Deposit.disturb
    def deadly(self):
        at_rest = self.at_rest
        if at_rest and take("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        disturb(self)
        if at_rest and take("behind"):
            os.kill(os.getpid(), signal.SIGKILL)
    def take(name):
        try:
            (pathlib.Path({folder!r}) / name).unlink()
        except FileNotFoundError:
            return False
        return True
    Deposit.disturb = deadly
"""
OPTIONS = ["--checkpoint-interval", "0", "--idle-seal", "0.05"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "sitecustomize.py").write_text(HOOKS.format(folder=str(tmp_path)))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with ServerProcess(tmp_path / "state", OPTIONS, {"PYTHONPATH": path}) as started:
        yield started
    end_keeper(started.state)


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    with running(server.endpoint, "train", tmp_path / "client") as started:
        yield started


def held(server: ServerProcess) -> dict[str, Any]:
    """Return what the keeper has of the session ``train``."""
    return held_of(server.state, "train")


def come_to_rest(server: ServerProcess, program: Program) -> None:
    """Wait until all that the program has done is sealed."""
    seq = program.link.next_seq - 1
    assert_eventually(
        lambda: (found := held(server)).get("sealed") and found["seq"] == seq,
        "the session is sealed",
    )


def kill_worker(server: ServerProcess) -> None:
    (pid,) = server.session_workers()
    kill(pid)


def restored(server: ServerProcess) -> list[str]:
    """Return how each restored worker began: from the keeper or from the store."""
    lines = [line for line in server.log_text().splitlines() if "session restored" in line]
    return ["keeper" if "kept=True" in line else "store" for line in lines]


def replayed(program: Program) -> int:
    return int(program.link.statistics()["replayed_calls"])


def test_whatever_is_killed_an_idle_session_goes_on_in_its_memory(
    server: ServerProcess, program: Program
) -> None:
    data = os.urandom(SIZE)
    address = program.alloc(SIZE)
    program.write(address, data)
    module = program.load(ptx.LIST)
    variable, _ = program.variable(module, "offset")
    program.write(variable, (1000).to_bytes(8, "little"))
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1])
    stream, event = program.stream(), program.event()
    program.record(event, stream)
    come_to_rest(server, program)
    kill_worker(server)
    # Twice, for what was taken over is left again.
    for digit, deadly in ((2, server.kill), (3, lambda: kill_worker(server))):
        program.append(kernel, tape, [digit])
        assert program.read(address, SIZE) == data
        assert program.number(variable) == 1000
        program.record(event, stream)
        come_to_rest(server, program)
        deadly()
        if server.process is None:
            server.start()
    assert program.number(tape) == tape_of([1, 2, 3])
    assert program.alloc(SIZE) not in (address, tape)
    program.free(address)
    assert restored(server) == ["keeper"] * 3
    assert replayed(program) == 0
    assert not list((server.state / "checkpoints").rglob("manifest.json"))


def test_a_worker_that_outlives_its_gateway_keeps_what_it_has_left(
    server: ServerProcess, program: Program
) -> None:
    address = program.alloc(SIZE)
    program.write(address, b"1" * SIZE)
    come_to_rest(server, program)
    server.kill(workers_too=False)
    server.start()
    assert held(server)["sealed"]
    kill_worker(server)
    assert program.read(address, SIZE) == b"1" * SIZE
    assert (restored(server), replayed(program)) == (["keeper"], 0)


def test_what_was_handed_over_is_left_again(server: ServerProcess, program: Program) -> None:
    address = program.alloc(SIZE)
    program.write(address, b"1" * SIZE)
    come_to_rest(server, program)
    assert server.process is not None
    server.process.send_signal(signal.SIGUSR2)
    assert server.wait() == 0
    server.start()
    assert program.read(address, SIZE) == b"1" * SIZE
    come_to_rest(server, program)
    kill_worker(server)
    assert program.read(address, SIZE) == b"1" * SIZE
    assert (restored(server), replayed(program)) == (["keeper"] * 2, 0)


def test_with_work_behind_the_seal_it_goes_on_from_the_checkpoint(
    server: ServerProcess, program: Program
) -> None:
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1, 2])
    program.checkpoint(server.state)
    program.append(kernel, tape, [3])
    come_to_rest(server, program)
    program.append(kernel, tape, [4])
    program.sync()
    kill_worker(server)
    program.append(kernel, tape, [5])
    assert program.number(tape) == tape_of([1, 2, 3, 4, 5])
    assert restored(server) == ["store"]
    assert replayed(program) > 0


@pytest.mark.parametrize(("moment", "source"), [("before", "keeper"), ("behind", "store")])
def test_a_death_at_the_very_moment_at_which_work_begins_again(
    server: ServerProcess, program: Program, tmp_path: Path, moment: str, source: str
) -> None:
    """Nothing of the call is done, but whoever comes next cannot know that if the mark is gone."""
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1])
    program.checkpoint(server.state)
    program.append(kernel, tape, [2])
    come_to_rest(server, program)
    (tmp_path / moment).touch()
    program.append(kernel, tape, [3])
    assert program.number(tape) == tape_of([1, 2, 3])
    assert restored(server) == [source]
    assert bool(replayed(program)) is (source == "store")


def test_without_its_keeper_it_goes_on_from_the_checkpoint_and_another_keeper_is_found(
    server: ServerProcess, program: Program
) -> None:
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1])
    program.checkpoint(server.state)
    program.append(kernel, tape, [2])
    come_to_rest(server, program)
    end_keeper(server.state)
    kill_worker(server)
    program.append(kernel, tape, [3])
    assert program.number(tape) == tape_of([1, 2, 3])
    assert restored(server) == ["store"]
    come_to_rest(server, program)
    end_keeper(server.state)
    come_to_rest(server, program)  # nothing has been done; the seal is gone, so there is another
    kill_worker(server)
    assert program.number(tape) == tape_of([1, 2, 3])
    assert restored(server) == ["store", "keeper"]


def test_a_damaged_seal_is_not_used_and_given_up(server: ServerProcess, program: Program) -> None:
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1])
    program.checkpoint(server.state)
    program.append(kernel, tape, [2])
    come_to_rest(server, program)
    token = held(server)["token"]
    damage_seal(server)
    kill_worker(server)
    program.append(kernel, tape, [3])
    assert program.number(tape) == tape_of([1, 2, 3])
    assert restored(server) == ["store"]
    come_to_rest(server, program)
    assert held(server)["token"] > token


def damage_seal(server: ServerProcess) -> None:
    """Change a byte of the sealed epoch that the keeper has."""
    (pid,) = keeper_pids(server.state)
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:outlast-epoch" in os.readlink(entry):
            with entry.open("r+b") as file:
                file.seek(-100, os.SEEK_END)
                byte = file.read(1)
                file.seek(-100, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))


def test_a_session_whose_program_is_gone_goes_on_too(server: ServerProcess, tmp_path: Path) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as first:
        address = first.alloc(SIZE)
        first.write(address, b"1" * SIZE)
        come_to_rest(server, first)
    server.kill()
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as second:
        assert second.read(address, SIZE) == b"1" * SIZE
        assert restored(server) == ["keeper"]
        # The log of this program begins at an epoch that was taken for it.
        second.write(address, b"2")
        come_to_rest(server, second)
        kill_worker(server)
        assert second.read(address, 2) == b"21"
        assert restored(server) == ["keeper"] * 2


@pytest.mark.parametrize("end", ["SIGTERM", "program"])
def test_what_is_over_is_given_back(server: ServerProcess, tmp_path: Path, end: str) -> None:
    with running(server.endpoint, "train", tmp_path / "client", end=end == "program") as program:
        program.write(program.alloc(SIZE), b"1" * SIZE)
        come_to_rest(server, program)
        if end == "SIGTERM":
            assert server.terminate() == 0
            assert not held(server)
    assert_eventually(lambda: not held(server), "it is given back")


def test_contexts_that_an_error_has_ended_are_never_at_rest(
    server: ServerProcess, program: Program
) -> None:
    program.write(program.alloc(SIZE), b"1" * SIZE)
    stray = program.kernel(program.load(ptx.STRAY), "stray_now")
    come_to_rest(server, program)
    program.launch(stray, ())
    error = cuda.cuCtxSynchronize()[0]
    assert error == cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    entry = held(server)
    assert (entry["sealed"], entry["outdated"]) == (False, True)
    kill_worker(server)
    assert cuda.cuCtxSynchronize()[0] == error
    assert restored(server) == []


def test_memory_freed_behind_a_seal_is_free(tmp_path: Path) -> None:
    environment = {"LUPINE_EMULATED_MEMORY": str(64 << 20)}
    with (
        ServerProcess(tmp_path / "state", OPTIONS, environment) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        big, small = program.alloc(40 << 20), program.alloc(8 << 20)
        program.write(small, b"s" * 100)
        come_to_rest(server, program)
        full = cuda.cuMemAlloc(40 << 20)[0]
        assert full == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        program.free(big)
        other = program.alloc(50 << 20)
        program.write(other, b"o" * 100)
        come_to_rest(server, program)
        kill_worker(server)
        assert program.read(other, 100) + program.read(small, 100) == b"o" * 100 + b"s" * 100
        assert program.read(other + 100, 30 << 20) == bytes(30 << 20)
        assert (restored(server), replayed(program)) == (["keeper"], 0)
    end_keeper(server.state)
