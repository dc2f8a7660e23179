"""A device that is nearly full: errors are real ones, and what is freed can be had again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from helpers import kernels
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

pytestmark = pytest.mark.whole_device

OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB, GIB = 1 << 20, 1 << 30
#: What a device keeps of its own when allocations come and go.
SLACK = 300 * MIB
#: Chunks that small allocations share.
CHUNK = 32 * MIB
#: A program that leaves so many bytes of the first device free, until it is told to end.
TENANT = """
import sys
from cuda.bindings import driver as cuda

def ok(answer):
    assert not int(answer[0]), answer
    return answer[1:]

ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))[0]))
free, _ = ok(cuda.cuMemGetInfo())
ok(cuda.cuMemAlloc(free - int(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
"""


def free() -> int:
    """Return how many bytes of the device are free."""
    return int(ok(cuda.cuMemGetInfo())[0])


@pytest.fixture(autouse=True)
def settled(server: ServerProcess, program: Program) -> None:
    """Have the server's spare worker made its context, which takes memory too."""
    assert_eventually(lambda: len(server.workers()) == 2, "the spare worker is there")
    last, since = free(), time.monotonic()
    while time.monotonic() - since < 1.5:
        time.sleep(0.02)
        if free() != last:
            last, since = free(), time.monotonic()


def fill(size: int) -> list[int]:
    """Allocate until there is no more."""
    blocks = []
    while True:
        result, address = cuda.cuMemAlloc(size)
        if result == OUT_OF_MEMORY:
            return blocks
        assert result == cuda.CUresult.CUDA_SUCCESS
        blocks.append(int(address))


def test_memory_in_many_pieces_is_one_large_piece_once_it_is_freed(program: Program) -> None:
    before = free()
    size = max(40 * MIB, before // 100 // (2 * MIB) * (2 * MIB))
    blocks = fill(size)
    assert len(blocks) * size > before - size - SLACK
    full = free()
    assert full < size + SLACK
    for address in blocks[::2]:
        program.free(address)
    freed = len(blocks[::2]) * size
    assert free() - full > freed - SLACK
    # As no two of them are neighbours, this takes the physical memory of all.
    large = int(ok(cuda.cuMemAlloc(freed - SLACK)))
    ok(cuda.cuMemsetD8(large, 7, 4096))
    ok(cuda.cuMemsetD8(large + freed - SLACK - 4096, 7, 4096))
    assert program.read(large + freed - SLACK - 4096, 4096) == b"\7" * 4096
    assert cuda.cuMemAlloc(freed // 2) == (OUT_OF_MEMORY, None)
    for address in (*blocks[1::2], large):
        program.free(address)
    assert free() > before - SLACK


@pytest.mark.gpu
def test_holes_between_small_pieces_are_no_free_memory_but_are_used_again(
    program: Program,
) -> None:
    count = CHUNK // MIB
    program.sync()
    blocks = [int(ok(cuda.cuMemAlloc(MIB))) for _ in range(16 * count)]
    held = free()
    kept = blocks[::count]
    for address in blocks:
        if address not in kept:
            program.free(address)
    assert abs(free() - held) <= CHUNK, "holes were counted as free"
    again = [int(ok(cuda.cuMemAlloc(MIB))) for _ in range(15 * count)]
    assert abs(free() - held) <= CHUNK, "holes were not used again"
    assert not set(again) & set(kept)
    for address in (*again, *kept):
        program.free(address)
    assert free() >= held + 15 * CHUNK


def test_allocation_waits_for_freed_memory_that_work_still_uses(program: Program) -> None:
    """Rather than fail: a program would take the error for the truth."""
    linger = program.kernel(program.load(kernels.PTX), "linger")
    stream = program.stream(1)
    most = free() - SLACK
    first = int(ok(cuda.cuMemAlloc(most // 4 * 3)))
    program.sync()
    program.launch(linger, (("u64", int(1e9)),), stream)
    ok(cuda.cuMemsetD8Async(first, 1, 4096, stream))
    program.free(first)
    second = int(ok(cuda.cuMemAlloc(most // 3 * 2)))  # of another size: not the same chunk
    ok(cuda.cuMemsetD8(second, 2, 4096))
    assert program.read(second, 4096) == b"\2" * 4096
    program.sync()
    program.free(second)


@contextmanager
def tenant(left: int) -> Iterator[subprocess.Popen[str]]:
    """Somebody who has all of the device but so many bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", TENANT, str(left)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_restore_without_enough_memory_is_tried_again_until_there_is(
    server: ServerProcess, program: Program
) -> None:
    """E4: the same restore succeeds once somebody has freed memory, and nothing has leaked."""
    size = 4 * GIB
    tape, memory = program.new_tape(), int(ok(cuda.cuMemAlloc(size)))
    program.append(*tape, [1])
    ok(cuda.cuMemsetD8(memory, 9, size))
    program.sync()
    before = free()
    assert server.terminate(60) == 0
    with tenant(3 * GIB):  # for contexts, and not for the session
        server.start()
        read: list[int] = []

        def wait() -> None:
            program.use_primary()
            read.append(program.number(tape[1]))

        thread = threading.Thread(target=wait)
        thread.start()
        refusal = "cannot be had: error 2"
        assert_eventually(lambda: server.log_text().count(refusal) >= 2, "it is refused", 40)
        assert thread.is_alive(), "the program was told something"
        assert not read
    thread.join(40)
    assert read == [1]
    program.append(*tape, [2])
    assert program.number(tape[1]) == 12
    assert program.read(memory + size - 4096, 4096) == b"\x09" * 4096
    deadline = time.monotonic() + 20
    while free() < before - SLACK:
        assert time.monotonic() < deadline, (before, free())
