"""A thread that waits for room in its stream, while what it waits for dies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from helpers.gate import Gate
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda
from outlast.shim.process import process

NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
DEADLINE = 30.0  # seconds
COUNT = 700


def is_full(stream: int) -> bool:
    client = process.client
    assert client is not None
    found = client.streams.get(stream)
    return found.taken - found.finished >= client.link.stream_credits


def new_worker(server: ServerProcess, program: Program) -> None:
    server.kill_workers()


def new_connection(server: ServerProcess, program: Program) -> None:
    program.link.reconnect()


@pytest.mark.parametrize("strike", [new_worker, new_connection])
def test_a_thread_that_waits_for_room_goes_on_when_the_next_worker_is_as_far(
    server: ServerProcess,
    program: Program,
    strike: Callable[[ServerProcess, Program], None],
) -> None:
    kernel, target = program.new_tape()
    gate, stream, passed = Gate(cuda), program.stream(NON_BLOCKING), program.alloc(4)
    program.sync()
    gate.store_behind(passed, 1, stream)

    def fill() -> None:
        program.use_primary()
        for _ in range(COUNT):
            program.launch(kernel, (("pointer", target), ("u32", 1)), stream)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert_eventually(lambda: is_full(stream), "the stream is full")
        strike(server, program)
        ok(cuda.cuMemGetInfo())
        assert thread.is_alive()
        assert is_full(stream)
    finally:
        gate.open_in(server)
        thread.join(DEADLINE)
    assert not thread.is_alive()
    ok(cuda.cuStreamSynchronize(stream))
    assert program.number(target) == int("1" * COUNT) % 2**64
    # What was done again counts no second time.
    for _ in range(2 * COUNT):
        ok(cuda.cuMemsetD8Async(target, 0, 8, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert program.number(target) == 0
