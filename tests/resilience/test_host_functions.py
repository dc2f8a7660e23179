"""Host functions run once, whatever dies: between what came before and what comes behind them."""

from __future__ import annotations

import ctypes

from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda


def test_a_function_between_two_copies_runs_once_though_the_worker_dies(
    server: ServerProcess, program: Program
) -> None:
    slow = program.kernel(program.load(ptx.SLOW), "slow")
    source, target = program.alloc(4), program.alloc(4)
    pinned = int(ok(cuda.cuMemHostAlloc(4, 0)))
    number = ctypes.c_uint32.from_address(pinned)
    stream, seen = program.stream(1), []

    def double(data: str) -> None:
        seen.append((data, number.value))
        number.value *= 2

    parameters = (("pointer", source), ("u32", 21), ("u64", 300_000_000))
    program.launch(slow, parameters, stream)
    ok(cuda.cuMemcpyDtoHAsync(pinned, source, 4, stream))
    ok(cuda.cuLaunchHostFunc(stream, double, "data"))
    before = program.reconnects()
    server.kill_workers()
    ok(cuda.cuMemcpyHtoDAsync(target, pinned, 4, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert_eventually(lambda: program.reconnects() > before, "the session is back")
    assert program.number(target, 4) == 42
    server.kill_workers()
    assert program.number(target, 4) == 42
    assert seen == [("data", 21)]


def test_a_function_that_waits_when_the_program_closes_its_session_never_runs(
    server: ServerProcess, program: Program
) -> None:
    slow = program.kernel(program.load(ptx.SLOW), "slow")
    target, seen = program.alloc(4), []
    program.launch(slow, (("pointer", target), ("u32", 1), ("u64", 60_000_000_000)))
    ok(cuda.cuLaunchHostFunc(0, seen.append, 1))
    server.kill()
    program.close()
    assert not seen
