"""LUPINE_FAULT_RECOVERY: a fault that does not come again is one that the program never saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ptx
from helpers.program import Program, epochs_of, ok, running, tape_of
from helpers.program_process import ProgramProcess
from helpers.sabotage import Sabotage, Size
from helpers.server_process import ServerProcess

from outlast.server.workers import CrashCount
from outlast.session.recovery import FaultRecovery
from outlast.shim import driver as cuda

TRAPPED = cuda.CUresult.CUDA_ERROR_LAUNCH_FAILED
STRAY = cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
THREADS = 4


@pytest.fixture
def sabotage(tmp_path: Path) -> Sabotage:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    return Sabotage(hooks)


@pytest.fixture
def server(tmp_path: Path, sabotage: Sabotage) -> Iterator[ServerProcess]:
    """A server whose device can be made to fail."""
    arguments = ["--checkpoint-interval", "0"]
    with ServerProcess(tmp_path / "state", arguments, sabotage.environment) as started:
        yield started


@pytest.fixture
def program(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[Program]:
    """A program that recovers; directly attached, unless the test says otherwise."""
    settings: dict[str, Any] = {"fault_recovery": True, "relay": getattr(request, "param", False)}
    with running(server.endpoint, "train", tmp_path / "client", **settings) as started:
        yield started


def recoveries() -> int:
    """Return how many the program has been through."""
    return int(cuda.statistics()["recoveries"])


def worker_of(server: ServerProcess) -> int:
    """Return the pid of the only session's worker."""
    (pid,) = server.session_workers()
    return pid


@pytest.mark.parametrize(
    ("program", "size"),
    [(False, Size.FAULTS_ONCE), (True, Size.FAULTS_ONCE), (False, Size.STRAYS_ONCE)],
    ids=["direct", "relayed", "illegal address"],
    indirect=["program"],
)
def test_a_fault_that_happens_once_changes_no_result(
    server: ServerProcess, program: Program, tmp_path: Path, size: Size
) -> None:
    with ProgramProcess(server.endpoint, "neighbour", tmp_path / "neighbour") as neighbour:
        theirs = neighbour.call("new_tape")
        neighbour.call("append", *theirs, [1])
        before = server.session_workers()
        ours = program.new_tape()
        program.append(*ours, [5, 6])
        program.checkpoint(server.state)
        program.append(*ours, [7])
        stream, event = program.stream(), program.event()

        address = program.alloc(size)
        program.append(*ours, [8])
        program.record(event, stream)
        assert program.number(ours[1]) == tape_of([5, 6, 7, 8])
        assert program.read(address, 16) == bytes(16)
        program.sync()
        assert recoveries() == 1

        # The neighbour has the worker it had, and heard nothing of it.
        neighbour.call("append", *theirs, [2])
        assert neighbour.call("number", theirs[1]) == tape_of([1, 2])
        assert neighbour.call("reconnects") == 0
        assert len(set(before) & set(server.session_workers())) == 1
        assert "worker died" not in server.log_text()
        # And nothing stays of the fault: there are epochs again.
        seq = program.checkpoint(server.state)
        assert epochs_of(server.state, "train")[0].seq == seq


def test_without_any_epoch_the_session_comes_from_its_log(
    server: ServerProcess, program: Program
) -> None:
    ours = program.new_tape()
    program.append(*ours, [1, 2])
    assert program.number(ours[1]) == tape_of([1, 2])
    program.alloc(Size.FAULTS_ONCE)
    program.append(*ours, [3])
    assert program.number(ours[1]) == tape_of([1, 2, 3])
    assert recoveries() == 1


def test_threads_that_wait_get_their_results(server: ServerProcess, program: Program) -> None:
    context = ok(cuda.cuCtxGetCurrent())
    ready = threading.Barrier(THREADS + 1)
    read: dict[int, int] = {}

    def play(number: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))
        tape = program.new_tape()
        ready.wait(30)
        for digit in range(10):
            program.append(*tape, [digit])
            assert program.number(tape[1]) == tape_of(range(digit + 1))
        read[number] = program.number(tape[1])

    threads = [threading.Thread(target=play, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    program.alloc(Size.FAULTS_ONCE)
    for thread in threads:
        thread.join(30)
    program.sync()
    assert read == dict.fromkeys(range(THREADS), tape_of(range(10)))
    assert recoveries() == 1


def test_faults_that_have_nothing_to_do_with_each_other_park_nothing(
    server: ServerProcess, program: Program, sabotage: Sabotage
) -> None:
    ours = program.new_tape()
    digits = range(max(FaultRecovery.MOST, CrashCount.SAME_CALL, CrashCount.NO_PROGRESS) + 2)
    for digit in digits:
        sabotage.forget()
        program.append(*ours, [digit])
        program.alloc(Size.FAULTS_ONCE)
        program.sync()
        program.checkpoint(server.state)
    assert program.number(ours[1]) == tape_of(digits)
    assert recoveries() == len(digits)
    assert "session parked" not in server.log_text()


@pytest.mark.parametrize("recovers", [False, True], ids=["reported", "recovered"])
def test_a_fault_that_comes_again_ends_as_without_the_setting(
    server: ServerProcess, tmp_path: Path, recovers: bool
) -> None:
    with running(server.endpoint, "train", tmp_path / "client", fault_recovery=recovers) as program:
        ours = program.new_tape()
        program.append(*ours, [1])
        program.checkpoint(server.state)
        # The fault may be there before the allocation is answered.
        assert cuda.cuMemAlloc(Size.FAULTS)[0] in (0, TRAPPED)
        for _ in range(3):
            assert cuda.cuCtxSynchronize() == (TRAPPED,)
            assert cuda.cuMemAlloc(8) == (TRAPPED, None)
            assert cuda.cuMemcpyDtoH(bytearray(8), ours[1], 8) == (TRAPPED,)
        assert recoveries() == recovers
        assert "session parked" not in server.log_text()
        # It stays so, whatever comes.
        server.kill()
        server.start()
        assert cuda.cuCtxSynchronize() == (TRAPPED,)
        assert recoveries() == recovers


@pytest.mark.parametrize("recovers", [False, True], ids=["reported", "recovered"])
def test_a_stray_store_of_the_program_is_reported_as_what_it_is(
    server: ServerProcess, tmp_path: Path, recovers: bool
) -> None:
    with running(server.endpoint, "train", tmp_path / "client", fault_recovery=recovers) as program:
        append = program.kernel(program.load(ptx.TAPE), "append")
        program.append(append, program.alloc(8) + (1 << 36), [1])
        assert cuda.cuCtxSynchronize() == (STRAY,)
        assert recoveries() == recovers


def test_without_the_setting_a_fault_that_happens_once_is_reported(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        program.sync()
        worker = worker_of(server)
        assert cuda.cuMemAlloc(Size.FAULTS_ONCE)[0] in (0, TRAPPED)
        assert cuda.cuCtxSynchronize() == (TRAPPED,)
        assert recoveries() == 0
        program.link.reconnect()
        assert cuda.cuCtxSynchronize() == (TRAPPED,)
        assert worker_of(server) == worker


def test_a_wish_for_a_fresh_worker_ends_none_that_is_well(
    server: ServerProcess, program: Program
) -> None:
    """The WELCOME to the fresh one may have been lost: the client asks again."""
    ours = program.new_tape()
    program.append(*ours, [1])
    program.sync()
    worker = worker_of(server)
    program.link._session.recovery.wanted = True
    program.link.reconnect()
    program.append(*ours, [2])
    assert program.number(ours[1]) == tape_of([1, 2])
    assert worker_of(server) == worker
    assert cuda.statistics()["replayed_calls"] == 0


def test_a_server_that_is_killed_meanwhile_costs_no_result(
    server: ServerProcess, program: Program
) -> None:
    ours = program.new_tape()
    program.append(*ours, [1])
    program.checkpoint(server.state)
    program.append(*ours, [2])
    program.alloc(Size.FAULTS_ONCE)
    server.kill()
    server.start()
    program.append(*ours, [3])
    assert program.number(ours[1]) == tape_of([1, 2, 3])
