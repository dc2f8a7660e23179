"""Threads of one program: each call gets its own answer, whoever else calls (A8)."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from helpers import ptx
from helpers.program import TYPES, Program, ok, running
from helpers.server_process import ServerProcess

from outlast.errors import LinkClosed
from outlast.shim import driver as cuda

RESULT = cuda.CUresult
THREADS = 16
CALLS = 1000
#: How long ``slow`` keeps the device busy.
SECONDS_LONG = 10_000_000_000  # nanoseconds


def run_in_threads(count: int, work: Callable[[int], None], timeout: float = 50.0) -> None:
    """Run ``work`` in threads at once; fail with the first failure."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            together.wait(10)
            work(number)
        except (AssertionError, threading.BrokenBarrierError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if failures:
        raise failures[0]
    assert not [thread for thread in threads if thread.is_alive()], "a thread hangs"


def test_two_threads_push_one_context_and_allocate_in_it(program: Program) -> None:
    context = program.context()
    addresses: list[set[int]] = [set(), set()]

    def work(number: int) -> None:
        assert cuda.cuMemAlloc(16)[0] == RESULT.CUDA_ERROR_INVALID_CONTEXT
        ok(cuda.cuCtxPushCurrent(context))
        for _ in range(300):
            address = ok(cuda.cuMemAlloc(256))
            addresses[number].add(address)
            ok(cuda.cuMemFree(address))
        assert ok(cuda.cuCtxPopCurrent()) == context
        assert ok(cuda.cuCtxGetCurrent()) == 0

    run_in_threads(2, work)
    assert addresses[0]
    assert addresses[1]


def test_first_call_of_a_thread_may_be_a_copy(program: Program) -> None:
    address = program.alloc(64)

    def without_context(_: int) -> None:
        refused = (RESULT.CUDA_ERROR_INVALID_CONTEXT,)
        assert cuda.cuMemcpyHtoD(address, b"x" * 64, 64) == refused

    def with_context(_: int) -> None:
        program.use_primary()
        program.write(address, b"y" * 64)
        assert program.read(address, 64) == b"y" * 64

    run_in_threads(1, without_context)
    run_in_threads(1, with_context)
    assert program.read(address, 64) == b"y" * 64


def test_each_of_many_threads_gets_the_answers_to_its_own_calls(program: Program) -> None:
    kernel, _ = program.new_tape()

    def work(number: int) -> None:
        program.use_primary()
        chance = random.Random(number)
        target, scratch = program.alloc(8), program.alloc(64)
        stream, event = program.stream(), program.event()
        expected = 0
        calls = 0
        while calls < CALLS:
            kind = chance.randrange(6)
            if kind == 0:
                digit = chance.randrange(10)
                program.launch(kernel, (("pointer", target), ("u32", digit)), stream)
                expected = (expected * 10 + digit) % 2**64
                calls += 1
            elif kind == 1:
                ok(cuda.cuEventRecord(event, stream))
                ok(cuda.cuEventSynchronize(event))
                assert cuda.cuEventQuery(event) == (RESULT.CUDA_SUCCESS,)
                calls += 3
            elif kind == 2:
                text = number.to_bytes(4, "little") + calls.to_bytes(4, "little")
                program.write(scratch, text * 8)
                assert program.read(scratch, 64) == text * 8
                calls += 2
            elif kind == 3:
                size = 8 + number
                address = program.alloc(size)
                assert ok(cuda.cuMemGetAddressRange(address)) == (address, size)
                program.free(address)
                calls += 4
            elif kind == 4:
                ok(cuda.cuStreamSynchronize(stream))
                assert program.number(target) == expected
                calls += 2
            else:
                assert cuda.cuEventQuery(2**40 + number)[0] == RESULT.CUDA_ERROR_INVALID_HANDLE
                assert cuda.cuMemcpyDtoH(bytearray(8), 16, 8)[0] == RESULT.CUDA_ERROR_INVALID_VALUE
                calls += 2
        ok(cuda.cuStreamSynchronize(stream))
        assert program.number(target) == expected

    run_in_threads(THREADS, work)
    assert program.link.reconnects == 0


def test_closing_from_another_thread_ends_a_blocked_wait_soon(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "closed while waiting", tmp_path, end=True) as program:
        target = program.alloc(4)
        slow = program.kernel(program.load(ptx.SLOW), "slow")
        parameters = ((target, 1, SECONDS_LONG), (TYPES["pointer"], TYPES["u32"], TYPES["u64"]))
        ok(cuda.cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0))
        ended: list[tuple[int, float]] = []

        def wait() -> None:
            program.use_primary()
            result = cuda.cuCtxSynchronize()[0]
            ended.append((result, time.monotonic()))

        waiting = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        while len(program.link._session._queries) < len(waiting):
            time.sleep(0.005)
        closed = time.monotonic()
        program.link.close(end=True)
        for thread in waiting:
            thread.join(10)
        assert [result for result, _ in ended] == [LinkClosed.cu_result] * 3
        assert max(moment for _, moment in ended) - closed <= 2.0
        assert cuda.cuMemAlloc(8)[0] == LinkClosed.cu_result
        buffer = ctypes.create_string_buffer(4)
        assert cuda.cuMemcpyDtoH(buffer, target, 4)[0] == LinkClosed.cu_result
