"""Libraries, their kernels and what their variables hold outlive workers and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import ptx
from helpers.fatbins import CHOSEN, sample
from helpers.program import Program, ok, running
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

NO_OPTIONS = (None, None, 0, None, None, 0)


def load(image: bytes) -> int:
    return int(ok(cuda.cuLibraryLoadData(image, *NO_OPTIONS)))


def kernel_of(library: int, name: str) -> int:
    return int(ok(cuda.cuLibraryGetKernel(library, name.encode())))


def lose_worker(server: ServerProcess, program: Program) -> None:
    before = program.reconnects()
    server.kill_workers()
    assert_eventually(lambda: program.reconnects() > before, "the session is back")


def scaled(program: Program, kernel: Any, target: int) -> int:
    program.launch(kernel, (("pointer", target),))
    return program.number(target, 4)


def test_libraries_are_there_after_a_replay_and_after_a_restore(
    server: ServerProcess, program: Program
) -> None:
    fatbin, tape = load(sample("size")), load(ptx.TAPE.encode())
    which, append = kernel_of(fatbin, "which"), kernel_of(tape, "append")
    address, _ = ok(cuda.cuLibraryGetGlobal(fatbin, b"scale"))
    target, digits = program.alloc(8), program.alloc(8)
    program.write(int(address), (2).to_bytes(4, "little"))
    program.append(append, digits, [1, 2])
    assert scaled(program, which, target) == 2 * CHOSEN
    lose_worker(server, program)  # all of it is replayed
    assert scaled(program, which, target) == 2 * CHOSEN
    program.append(append, digits, [3])
    program.checkpoint(server.state)
    lose_worker(server, program)  # all of it is restored
    program.append(append, digits, [4])
    assert program.number(digits) == 1234
    assert scaled(program, which, target) == 2 * CHOSEN
    assert ok(cuda.cuLibraryGetGlobal(fatbin, b"scale")) == (address, 4)
    late = kernel_of(tape, "nothing")
    program.launch(late, ())
    ok(cuda.cuLibraryUnload(tape))
    lose_worker(server, program)
    assert scaled(program, which, target) == 2 * CHOSEN


def test_a_library_that_no_context_has_loaded_is_restored_and_loaded_then(
    server: ServerProcess, program: Program
) -> None:
    ok(cuda.cuCtxSetCurrent(0))
    fatbin = load(sample("speed"))
    which = kernel_of(fatbin, "which")
    assert cuda.cuLibraryLoadData(sample("cubin"), *NO_OPTIONS)[0] == 209
    assert cuda.cuLibraryLoadData(ptx.TAPE[:-20].encode(), *NO_OPTIONS)[0] == 218
    program.use_primary()
    program.checkpoint(server.state)
    lose_worker(server, program)
    target = program.alloc(8)
    assert scaled(program, which, target) == CHOSEN
    other = program.context()
    ok(cuda.cuCtxPushCurrent(other))
    mine = program.alloc(8)
    assert scaled(program, which, mine) == CHOSEN
    ok(cuda.cuCtxPopCurrent())
    ok(cuda.cuCtxDestroy(other))
    lose_worker(server, program)
    assert scaled(program, which, target) == CHOSEN


def test_the_next_program_of_a_session_has_its_libraries(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as first:
        fatbin = load(sample("none"))
        which = kernel_of(fatbin, "which")
        function = int(ok(cuda.cuKernelGetFunction(which)))
        module = int(ok(cuda.cuLibraryGetModule(fatbin)))
        target = first.alloc(8)
    with running(server.endpoint, "train", tmp_path / "client", end=True) as second:
        assert kernel_of(fatbin, "which") == which
        assert ok(cuda.cuKernelGetFunction(which)) == function
        assert ok(cuda.cuLibraryGetModule(fatbin)) == module
        assert scaled(second, which, target) == scaled(second, function, target) == CHOSEN
        ok(cuda.cuLibraryUnload(fatbin))
        assert cuda.cuKernelGetFunction(which)[0] == 400
