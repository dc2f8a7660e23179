"""A rejected launch is reported exactly once, whatever happens in between (A1)."""

from __future__ import annotations

import ctypes

import pytest
from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session.operations import Op
from outlast.shim import driver as cuda

INVALID_VALUE = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
SUCCESS = cuda.CUresult.CUDA_SUCCESS


def launch_shape(kernel: int, grid: int, block: int) -> cuda.CUresult:
    return cuda.cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, 0, 0, 0)[0]


def send_unchecked(program: Program, kernel: int, block: int) -> None:
    """Send a launch as a client would that does not check it, so that the device rejects it."""
    program.link.send(Op.LAUNCH, kernel, 0, 1, 1, 1, block, 1, 1, 0, data=b"")


def test_each_invalid_launch_fails_itself_and_nothing_after_it(program: Program) -> None:
    nothing = program.kernel(program.load(ptx.TAPE), "nothing")
    append, target = program.new_tape()

    assert launch_shape(nothing, grid=0, block=1) == INVALID_VALUE
    assert launch_shape(nothing, grid=1, block=2048) == INVALID_VALUE
    assert launch_shape(nothing, grid=1, block=64) == SUCCESS
    program.append(append, target, [4, 2])
    assert cuda.cuCtxSynchronize() == (SUCCESS,)
    assert cuda.cuStreamSynchronize(0) == (SUCCESS,)
    assert program.number(target) == 42


def test_launch_that_only_the_device_rejects_fails_the_next_wait_once(program: Program) -> None:
    nothing = program.kernel(program.load(ptx.TAPE), "nothing")
    append, target = program.new_tape()

    send_unchecked(program, nothing, block=2048)
    program.append(append, target, [7])
    assert cuda.cuCtxSynchronize() == (INVALID_VALUE,)
    assert cuda.cuCtxSynchronize() == (SUCCESS,)
    assert program.number(target) == 7


def test_late_error_is_not_told_by_calls_that_programs_trust_to_succeed(program: Program) -> None:
    nothing = program.kernel(program.load(ptx.TAPE), "nothing")
    stream, event, memory = program.stream(), program.event(), program.alloc(8)
    program.sync()

    send_unchecked(program, nothing, block=2048)
    program.record(event, stream)
    assert cuda.cuEventQuery(event)[0] in (SUCCESS, cuda.CUresult.CUDA_ERROR_NOT_READY)
    assert cuda.cuMemFree(memory) == (SUCCESS,)
    assert cuda.cuEventDestroy(event) == (SUCCESS,)
    assert cuda.cuStreamDestroy(stream) == (SUCCESS,)
    assert cuda.cuMemGetInfo()[0] == SUCCESS
    assert cuda.cuCtxGetCurrent()[0] == SUCCESS
    assert cuda.cuStreamSynchronize(0) == (INVALID_VALUE,)
    assert cuda.cuCtxSynchronize() == (SUCCESS,)


@pytest.mark.parametrize("fault", ["link", "worker"])
def test_rejected_launch_is_reported_once_over_a_resume_before_the_wait(
    server: ServerProcess, program: Program, fault: str
) -> None:
    nothing = program.kernel(program.load(ptx.TAPE), "nothing")
    append, target = program.new_tape()
    program.sync()

    send_unchecked(program, nothing, block=2048)
    program.append(append, target, [1, 2])
    break_session(server, program, fault)
    assert cuda.cuCtxSynchronize() == (INVALID_VALUE,)
    assert cuda.cuCtxSynchronize() == (SUCCESS,)
    assert program.number(target) == 12


@pytest.mark.parametrize("fault", ["link", "worker"])
def test_rejected_launch_is_not_reported_again_after_a_resume(
    server: ServerProcess, program: Program, fault: str
) -> None:
    nothing = program.kernel(program.load(ptx.TAPE), "nothing")
    append, target = program.new_tape()

    send_unchecked(program, nothing, block=2048)
    assert cuda.cuCtxSynchronize() == (INVALID_VALUE,)
    break_session(server, program, fault)
    program.append(append, target, [3])
    assert cuda.cuCtxSynchronize() == (SUCCESS,)
    assert program.number(target) == 3


def test_parameters_of_a_wrong_shape_are_refused_before_they_travel(program: Program) -> None:
    append, target = program.new_tape()
    types = (ctypes.c_void_p, ctypes.c_uint32)

    too_few = cuda.cuLaunchKernel(append, 1, 1, 1, 1, 1, 1, 0, 0, ((target,), types[:1]), 0)
    assert too_few == (INVALID_VALUE,)
    ok(cuda.cuLaunchKernel(append, 1, 1, 1, 1, 1, 1, 0, 0, ((target, 5), types), 0))
    assert program.number(target) == 5


def break_session(server: ServerProcess, program: Program, fault: str) -> None:
    """Make the session resume, and wait until it has."""
    before = program.link.reconnects
    if fault == "link":
        drop_connection(program)
    else:
        server.kill_workers()
    assert_eventually(lambda: program.link.reconnects > before, "the session is resumed")


def drop_connection(program: Program) -> None:
    """Break the data connection as a lost network does: no good-bye."""
    program.link.reconnect()
