"""What a wait waits for is fixed where it was called, not where it is looked at.

Semantics of waits on events and contexts, and of synchronous copies beside other streams.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import assert_eventually

from outlast.shim import driver as cuda

SUCCESS = (cuda.CUresult.CUDA_SUCCESS,)
NOT_READY = (cuda.CUresult.CUDA_ERROR_NOT_READY,)
NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING


class Slow:
    """A kernel that stores a value after so many seconds."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kernel = program.kernel(program.load(ptx.SLOW), "slow")
        self.target = program.alloc(4)
        program.sync()

    def launch(self, value: int, seconds: float, stream: int = 0) -> None:
        """Enqueue it."""
        duration = ("u64", int(seconds * 1e9))
        parameters = (("pointer", self.target), ("u32", value), duration)
        self._program.launch(self._kernel, parameters, stream)


def in_thread(
    program: Program, call: Callable[[], tuple[int, ...]]
) -> tuple[threading.Thread, list[float]]:
    """Make a successful call in a thread; return it and, once it is over, the moment of its end."""
    ended: list[float] = []

    def run() -> None:
        program.use_primary()
        if call() == SUCCESS:
            ended.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    queries = program.link._session._queries
    assert_eventually(lambda: queries or ended, "the call waits")
    return thread, ended


def test_wait_for_an_event_ends_with_the_record_that_it_was_called_for(program: Program) -> None:
    slow = Slow(program)
    event, stream = program.event(), program.stream(NON_BLOCKING)
    slow.launch(1, 0.3, stream)
    ok(cuda.cuEventRecord(event, stream))
    thread, ended = in_thread(program, lambda: cuda.cuEventSynchronize(event))
    slow.launch(2, 1.5, stream)
    ok(cuda.cuEventRecord(event, stream))

    thread.join(20)
    assert cuda.cuEventQuery(event) == NOT_READY
    ok(cuda.cuEventSynchronize(event))
    assert ended
    assert time.monotonic() - ended[0] > 0.3
    assert cuda.cuEventQuery(event) == SUCCESS
    assert program.number(slow.target, 4) == 2


def test_wait_for_a_context_does_not_wait_for_what_others_enqueue_later(program: Program) -> None:
    slow = Slow(program)
    stream = program.stream(NON_BLOCKING)
    slow.launch(1, 0.3)
    thread, ended = in_thread(program, cuda.cuCtxSynchronize)
    for value in range(2, 6):
        slow.launch(value, 0.4, stream)

    thread.join(20)
    assert cuda.cuStreamQuery(stream) == NOT_READY
    program.sync()
    assert ended
    assert time.monotonic() - ended[0] > 0.4
    assert program.number(slow.target, 4) == 5


def test_stream_wait_keeps_the_record_it_saw_when_the_event_is_recorded_again(
    program: Program,
) -> None:
    kernel, target = program.new_tape()
    first, second = program.stream(NON_BLOCKING), program.stream(NON_BLOCKING)
    event = program.event()
    for round_ in range(50):
        program.launch(kernel, (("pointer", target), ("u32", 1)), first)
        ok(cuda.cuEventRecord(event, first))
        ok(cuda.cuStreamWaitEvent(second, event, 0))
        program.launch(kernel, (("pointer", target), ("u32", 2)), second)
        ok(cuda.cuEventRecord(event, second))
        ok(cuda.cuStreamWaitEvent(first, event, 0))
        if round_ == 9:
            program.sync()
            expected = int("12" * 10) % 2**64
            assert program.number(target) == expected
    program.sync()
    assert program.number(target) == int("12" * 50) % 2**64


def test_event_that_was_never_recorded_is_complete(program: Program) -> None:
    event = program.event()
    assert cuda.cuEventQuery(event) == SUCCESS
    assert cuda.cuEventSynchronize(event) == SUCCESS
    ok(cuda.cuStreamWaitEvent(0, event, 0))
    program.sync()


def test_synchronous_copy_is_seen_by_later_work_on_every_stream(program: Program) -> None:
    kernel, target = program.new_tape()
    slow = Slow(program)
    streams = [program.stream(NON_BLOCKING) for _ in range(4)]
    value = 0
    for number, stream in enumerate(streams * 5):
        if number % 5 == 0:
            slow.launch(number, 0.02)  # the legacy stream is busy when the copy is enqueued
        value = number + 7
        program.write(target, value.to_bytes(8, "little"))
        program.launch(kernel, (("pointer", target), ("u32", 3)), stream)
        value = value * 10 + 3
        assert int.from_bytes(read_in(program, target, stream), "little") == value
        ok(cuda.cuMemsetD8(target, 0, 8))
        program.launch(kernel, (("pointer", target), ("u32", 9)), stream)
        assert int.from_bytes(read_in(program, target, stream), "little") == 9


def read_in(program: Program, address: int, stream: int) -> bytes:
    """Copy eight bytes to the host behind a stream's work."""
    data = bytearray(8)
    ok(cuda.cuMemcpyDtoHAsync(data, address, 8, stream))
    return bytes(data)


def test_copy_to_the_host_has_the_bytes_of_its_place_in_the_order(program: Program) -> None:
    slow = Slow(program)
    slow.launch(11, 0.3)
    reading: list[int] = []

    def read() -> tuple[int, ...]:
        reading.append(program.number(slow.target, 4))
        return SUCCESS

    thread = threading.Thread(target=lambda: (program.use_primary(), read()))
    thread.start()
    assert_eventually(lambda: program.link._session._pending, "the copy is on its way")
    ok(cuda.cuMemsetD32(slow.target, 99, 1))
    thread.join(20)
    assert reading == [11]
    assert program.number(slow.target, 4) == 99
