"""Programs that ask again and again whether work is done."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import pytest
from helpers import ptx
from helpers.gate import Gate
from helpers.program import Program, ok
from helpers.server_process import ServerProcess

from outlast.shim import driver as cuda

DONE = (cuda.CUresult.CUDA_SUCCESS,)
NOT_READY = (cuda.CUresult.CUDA_ERROR_NOT_READY,)
FAILED = (cuda.CUresult.CUDA_ERROR_LAUNCH_FAILED,)
NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
DEADLINE = 20.0  # seconds
SIZE = (1 << 20) + 4096

Query = Callable[[], tuple[int]]


def poll(query: Query) -> int:
    """Ask until the answer is another than NOT_READY; return how often that came."""
    deadline, times = time.monotonic() + DEADLINE, 0
    while (answer := query()) == NOT_READY:
        times += 1
        assert time.monotonic() < deadline, "the work ends"
    assert answer == DONE
    return times


@pytest.mark.parametrize("kind", ["event", "stream"])
def test_asking_costs_no_round_trips_and_gets_its_answer_by_itself(
    server: ServerProcess, program: Program, kind: str
) -> None:
    gate, stream, event = Gate(cuda), program.stream(NON_BLOCKING), program.event()
    target = program.alloc(4)
    program.sync()
    gate.store_behind(target, 1, stream)
    program.record(event, stream)

    def query() -> tuple[int]:
        return cuda.cuEventQuery(event) if kind == "event" else cuda.cuStreamQuery(stream)

    asked = program.link._session.next_qid
    for _ in range(300):
        assert query() == NOT_READY
    gate.open_in(server)
    poll(query)
    assert program.link._session.next_qid == asked + 1
    assert query() == DONE
    assert program.link._session.next_qid == asked + 1


def test_bytes_are_there_when_a_record_behind_their_copy_is_done(program: Program) -> None:
    stream, event, memory = program.stream(NON_BLOCKING), program.event(), program.alloc(SIZE)
    pinned = ok(cuda.cuMemAllocHost(SIZE))
    program.sync()  # the memory is zeroed in another stream
    for turn in range(1, 20):
        ok(cuda.cuMemsetD8Async(memory, turn, SIZE, stream))
        ok(cuda.cuMemcpyDtoHAsync(pinned, memory, SIZE, stream))
        program.record(event, stream)
        poll(lambda: cuda.cuEventQuery(event))
        assert ctypes.string_at(pinned, SIZE) == bytes([turn]) * SIZE


def test_what_a_wait_implies_is_done_whoever_waits(server: ServerProcess, program: Program) -> None:
    """Natively a record is done once a wait for anything behind it has returned."""
    first, second = program.stream(NON_BLOCKING), program.stream(NON_BLOCKING)
    event, behind, target = program.event(), program.event(), program.alloc(4)
    for _ in range(40):
        ok(cuda.cuMemsetD32Async(target, 1, 1, first))
        program.record(event, first)
        ok(cuda.cuStreamWaitEvent(second, event, 0))
        program.record(behind, second)
        waited = threading.Event()

        def wait(waited: threading.Event = waited) -> None:
            program.use_primary()
            ok(cuda.cuEventSynchronize(behind))
            waited.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not waited.is_set():
            cuda.cuEventQuery(event)
        assert cuda.cuEventQuery(event) == DONE
        thread.join(DEADLINE)


def test_a_thread_that_asks_leaves_room_for_others(server: ServerProcess, program: Program) -> None:
    gate, stream, event = Gate(cuda), program.stream(NON_BLOCKING), program.event()
    target = program.alloc(4)
    gate.store_behind(target, 1, stream)
    program.record(event, stream)
    begun, ended = threading.Event(), threading.Event()
    answers = []

    def ask() -> None:
        program.use_primary()
        while not ended.is_set():
            answers.append(cuda.cuEventQuery(event))
            begun.set()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert begun.wait(DEADLINE)
        for _ in range(50):
            ok(cuda.cuMemGetInfo())
        gate.open_in(server)
        ok(cuda.cuEventSynchronize(event))
    finally:
        gate.open_in(server)
        ended.set()
        thread.join(DEADLINE)
    assert cuda.cuEventQuery(event) == DONE
    assert set(answers) <= {NOT_READY, DONE}


def test_a_record_behind_a_failed_kernel_gives_what_ended_the_context(program: Program) -> None:
    stream, event = program.stream(NON_BLOCKING), program.event()
    program.launch(program.kernel(program.load(ptx.TRAP), "trap_now"), (), stream)
    program.record(event, stream)
    deadline = time.monotonic() + DEADLINE
    while (answer := cuda.cuEventQuery(event)) == NOT_READY:
        assert time.monotonic() < deadline
    assert answer == FAILED
    assert cuda.cuEventQuery(event) == FAILED
    assert cuda.cuStreamQuery(stream) == FAILED
