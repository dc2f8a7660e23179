"""A poisoned context stays poisoned, keeps its last good epoch, and hurts nobody else."""

from __future__ import annotations

from pathlib import Path

from helpers import ptx
from helpers.program import Program, epochs_of, ok
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

#: What ``trap`` and a stray store end a context with.
TRAPPED = cuda.CUresult.CUDA_ERROR_LAUNCH_FAILED
STRAY = cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
NOT_SAVED = 3


def poison(program: Program) -> None:
    """Let a kernel store where no memory is."""
    append = program.kernel(program.load(ptx.TAPE), "append")
    program.append(append, program.alloc(8) + (1 << 36), [1])


def assert_poisoned(program: Program, address: int, kernel: int) -> None:
    """Check that every call that travels says so."""
    assert cuda.cuCtxSynchronize() == (STRAY,)
    assert cuda.cuMemAlloc(8) == (STRAY, None)
    assert cuda.cuMemcpyDtoH(bytearray(8), address, 8) == (STRAY,)
    assert cuda.cuMemcpyHtoD(address, bytes(8), 8) == (STRAY,)
    assert cuda.cuMemsetD8(address, 0, 8) == (STRAY,)
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == (STRAY,)
    assert cuda.cuStreamCreate(0) == (STRAY, None)
    assert cuda.cuModuleLoadData(ptx.TAPE.encode()) == (STRAY, None)


def test_poisoned_context_stays_so_and_its_neighbour_goes_on(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    with ProgramProcess(server.endpoint, "neighbour", tmp_path / "neighbour") as neighbour:
        kernel, target = neighbour.call("new_tape")
        neighbour.call("append", kernel, target, [1])
        ours, address = program.new_tape()
        program.append(ours, address, [5])
        good = program.checkpoint(server.state)

        poison(program)
        assert_poisoned(program, address, ours)
        neighbour.call("append", kernel, target, [2])
        assert neighbour.call("number", target) == 12

        # No epoch of it, whoever asks.
        program.link.request_epoch()
        neighbour.call("checkpoint_of", str(server.state))
        assert [row.seq for row in epochs_of(server.state, "train")] == [good]

        # A resumed session is as poisoned as before.
        server.kill()
        server.start()
        assert_poisoned(program, address, ours)
        assert_eventually(lambda: program.link.reconnects, "the session is resumed")
        assert_poisoned(program, address, ours)
        neighbour.call("append", kernel, target, [3])
        assert neighbour.call("number", target) == 123


def test_shutdown_names_the_poisoned_session_and_keeps_its_good_epoch(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    with ProgramProcess(server.endpoint, "neighbour", tmp_path / "neighbour") as neighbour:
        kernel, target = neighbour.call("new_tape")
        neighbour.call("append", kernel, target, [4, 2])
        assert neighbour.call("number", target) == 42
        ours, address = program.new_tape()
        program.append(ours, address, [5])
        good = program.checkpoint(server.state)
        poison(program)
        assert cuda.cuCtxSynchronize() == (STRAY,)

        assert server.terminate() == NOT_SAVED
        log = server.log_text()
        assert "not saved: train: its context is poisoned" in log
        assert "not saved: neighbour" not in log
        assert [row.seq for row in epochs_of(server.state, "train")] == [good]
        assert len(epochs_of(server.state, "neighbour")) == 1

        server.start()
        assert neighbour.call("number", target) == 42
        assert_poisoned(program, address, ours)


def test_session_poisoned_without_any_epoch_stays_poisoned_over_a_kill(
    server: ServerProcess, program: Program
) -> None:
    trap = program.kernel(program.load(ptx.TRAP), "trap_now")
    address = program.alloc(8)
    ok(cuda.cuLaunchKernel(trap, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    assert cuda.cuCtxSynchronize() == (TRAPPED,)
    before = program.link.reconnects
    server.kill()
    server.start()
    assert cuda.cuMemcpyDtoH(bytearray(8), address, 8) == (TRAPPED,)
    assert_eventually(lambda: program.link.reconnects > before, "the session is resumed")
    assert cuda.cuCtxSynchronize() == (TRAPPED,)
    assert cuda.cuMemAlloc(8) == (TRAPPED, None)
