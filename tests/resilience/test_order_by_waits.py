"""A program that waits, and then goes on in another stream, relies on the wait for their order.

A replay does not wait where the program did. (The emulated device does everything in the order
of issue, so that this can fail on a GPU alone.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import DEVICE, ServerProcess

from outlast.shim import driver as cuda

NON_BLOCKING = 1
SLOW = 5_000_000  # nanoseconds
ROUNDS = 8

Wait = Callable[[Program, int, int], None]


def by_stream(program: Program, stream: int, memory: int) -> None:
    ok(cuda.cuStreamSynchronize(stream))


def by_context(program: Program, stream: int, memory: int) -> None:
    program.sync()


def by_event(program: Program, stream: int, memory: int) -> None:
    event = program.event()
    program.record(event, stream)
    ok(cuda.cuEventSynchronize(event))


def by_asking(program: Program, stream: int, memory: int) -> None:
    event = program.event()
    program.record(event, stream)
    while cuda.cuEventQuery(event) != (cuda.CUresult.CUDA_SUCCESS,):
        pass


def by_copy(program: Program, stream: int, memory: int) -> None:
    ok(cuda.cuMemcpyDtoHAsync(bytearray(8), memory, 8, stream))


def by_rows(program: Program, stream: int, memory: int) -> None:
    kinds = cuda.CUmemorytype
    copy = cuda.CUDA_MEMCPY2D(
        srcMemoryType=kinds.CU_MEMORYTYPE_DEVICE, srcDevice=memory, srcPitch=4,
        dstMemoryType=kinds.CU_MEMORYTYPE_HOST, dstHost=bytearray(4), dstPitch=2,
        WidthInBytes=2, Height=2,
    )  # fmt: skip
    ok(cuda.cuMemcpy2DAsync(copy, stream))


def by_function(program: Program, stream: int, memory: int) -> None:
    reached = threading.Event()
    ok(cuda.cuLaunchHostFunc(stream, lambda _: reached.set(), None))
    assert reached.wait(30)


#: Told as those before them are, so that a device on which it cannot show need not try.
ON_A_GPU = pytest.mark.skipif(DEVICE == "emulated", reason="can fail on a GPU alone")
MORE = [pytest.param(wait, marks=ON_A_GPU) for wait in (by_rows, by_function)]


@pytest.mark.parametrize("wait", [by_stream, by_context, by_event, by_asking, by_copy, *MORE])
def test_replay_keeps_the_order_that_a_wait_gave(
    server: ServerProcess, program: Program, wait: Wait
) -> None:
    slow = program.kernel(program.load(ptx.SLOW), "slow")
    first, second = program.stream(NON_BLOCKING), program.stream(NON_BLOCKING)
    source, targets = program.alloc(8), program.alloc(8 * ROUNDS)
    program.sync()
    for turn in range(ROUNDS):
        parameters = (("pointer", source), ("u32", turn + 1), ("u64", SLOW))
        program.launch(slow, parameters, first)
        wait(program, first, source)
        ok(cuda.cuMemcpyDtoDAsync(targets + 8 * turn, source, 8, second))
        ok(cuda.cuStreamSynchronize(second))
    server.kill_workers()
    program.sync()
    assert [program.number(targets + 8 * turn) for turn in range(ROUNDS)] == [
        turn + 1 for turn in range(ROUNDS)
    ]
    assert program.link.statistics()["replayed_calls"] > 2 * ROUNDS


def test_calls_that_come_behind_the_death_keep_it_too(
    server: ServerProcess, program: Program
) -> None:
    slow = program.kernel(program.load(ptx.SLOW), "slow")
    first, second = program.stream(NON_BLOCKING), program.stream(NON_BLOCKING)
    source, target = program.alloc(8), program.alloc(8)
    program.sync()
    program.launch(slow, (("pointer", source), ("u32", 7), ("u64", 20 * SLOW)), first)
    ok(cuda.cuStreamSynchronize(first))
    server.kill_workers()
    ok(cuda.cuMemcpyDtoDAsync(target, source, 8, second))
    ok(cuda.cuStreamSynchronize(second))
    assert program.number(target) == 7
