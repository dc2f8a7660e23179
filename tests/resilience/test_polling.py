"""Programs that ask whether work is done while something dies."""

from __future__ import annotations

import time

from helpers.gate import Gate
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

DONE = (cuda.CUresult.CUDA_SUCCESS,)
NOT_READY = (cuda.CUresult.CUDA_ERROR_NOT_READY,)
DEADLINE = 30.0  # seconds


def begin(program: Program) -> tuple[Gate, int, int, int]:
    """Have a kernel wait on the device, with a record behind it that is asked for."""
    gate, stream, event, target = Gate(cuda), program.stream(1), program.event(), program.alloc(4)
    program.sync()
    gate.store_behind(target, 7, stream)
    program.record(event, stream)
    assert cuda.cuEventQuery(event) == NOT_READY
    assert cuda.cuStreamQuery(stream) == NOT_READY
    return gate, stream, event, target


def poll(event: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while cuda.cuEventQuery(event) == NOT_READY:
        assert time.monotonic() < deadline, "the work ends"
    assert cuda.cuEventQuery(event) == DONE


def test_what_was_asked_of_a_worker_that_died_the_next_one_answers(
    server: ServerProcess, program: Program
) -> None:
    gate, stream, event, target = begin(program)
    first = server.session_workers()
    server.kill_workers()
    ok(cuda.cuMemGetInfo())
    assert server.session_workers() != first
    assert cuda.cuEventQuery(event) == NOT_READY
    assert cuda.cuStreamQuery(stream) == NOT_READY
    gate.open_in(server)
    poll(event)
    ok(cuda.cuStreamSynchronize(stream))
    assert cuda.cuStreamQuery(stream) == DONE
    assert program.number(target, 4) == 7


def test_what_was_asked_is_answered_over_the_next_connection(
    server: ServerProcess, program: Program
) -> None:
    gate, _, event, _ = begin(program)
    program.link.reconnect()
    assert_eventually(lambda: program.link.reconnects == 1, "the link is back")
    assert cuda.cuEventQuery(event) == NOT_READY
    gate.open_in(server)
    poll(event)


def test_what_was_told_to_be_done_stays_done_while_it_is_done_again(
    server: ServerProcess, program: Program
) -> None:
    gate, stream, event, target = begin(program)
    gate.open_in(server)
    poll(event)
    server.kill_workers()
    # The kernel runs again, and this time the gate is closed: the program does not see it.
    assert cuda.cuEventQuery(event) == DONE
    ok(cuda.cuEventSynchronize(event))
    ok(cuda.cuMemGetInfo())
    assert cuda.cuEventQuery(event) == DONE
    later = program.event()
    program.record(later, stream)
    assert cuda.cuEventQuery(later) == NOT_READY
    gate.open_in(server)
    poll(later)
    assert program.number(target, 4) == 7
