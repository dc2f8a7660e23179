"""A handle that names nothing gives the driver's error code and disturbs nobody (A2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.program import Program
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess

from outlast.shim import driver as cuda

RESULT = cuda.CUresult
INVALID_VALUE = RESULT.CUDA_ERROR_INVALID_VALUE
INVALID_CONTEXT = RESULT.CUDA_ERROR_INVALID_CONTEXT
INVALID_HANDLE = RESULT.CUDA_ERROR_INVALID_HANDLE

#: A call for each kind of handle, and what the driver returns for one that names nothing.
CALLS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], int]] = {
    "push context": (cuda.cuCtxPushCurrent, INVALID_CONTEXT),
    "destroy context": (cuda.cuCtxDestroy, INVALID_CONTEXT),
    "set context": (cuda.cuCtxSetCurrent, INVALID_CONTEXT),
    "destroy stream": (cuda.cuStreamDestroy, INVALID_HANDLE),
    "synchronize stream": (cuda.cuStreamSynchronize, INVALID_HANDLE),
    "query stream": (cuda.cuStreamQuery, INVALID_HANDLE),
    "stream flags": (cuda.cuStreamGetFlags, INVALID_HANDLE),
    "launch in stream": (lambda h: cuda.cuLaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, h, 0, 0), 400),
    "copy in stream": (lambda h: cuda.cuMemcpyHtoDAsync(0, b"12", 2, h), INVALID_HANDLE),
    "destroy event": (cuda.cuEventDestroy, INVALID_HANDLE),
    "synchronize event": (cuda.cuEventSynchronize, INVALID_HANDLE),
    "query event": (cuda.cuEventQuery, INVALID_HANDLE),
    "record event": (lambda h: cuda.cuEventRecord(h, 0), INVALID_HANDLE),
    "wait for event": (lambda h: cuda.cuStreamWaitEvent(0, h, 0), INVALID_HANDLE),
    "unload module": (cuda.cuModuleUnload, INVALID_HANDLE),
    "function of module": (lambda h: cuda.cuModuleGetFunction(h, b"append"), INVALID_HANDLE),
    "variable of module": (lambda h: cuda.cuModuleGetGlobal(h, b"x"), INVALID_HANDLE),
    "launch function": (lambda h: cuda.cuLaunchKernel(h, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), 400),
    "function attribute": (lambda h: cuda.cuFuncGetAttribute(0, h), INVALID_HANDLE),
    "set function attribute": (lambda h: cuda.cuFuncSetAttribute(h, 8, 0), INVALID_HANDLE),
}
#: NULL is a valid stream (the legacy one), and unbinds a context.
NULL_IS_VALID = {
    *("set context", "synchronize stream", "query stream", "stream flags"),
    *("launch in stream", "copy in stream"),
}


@pytest.fixture(scope="module")
def neighbour(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProgramProcess]:
    """A second session, in a process of its own, that counts on a tape."""
    state = tmp_path_factory.mktemp("neighbour")
    with ProgramProcess(server.endpoint, "neighbour", state) as process:
        yield process


def assert_undisturbed(server: ServerProcess, program: Program, workers: list[int]) -> None:
    """Check that this session works and that no process was replaced."""
    address = program.alloc(4096)
    program.write(address, bytes(range(256)) * 16)
    assert program.read(address, 4096) == bytes(range(256)) * 16
    program.free(address)
    assert sorted(server.session_workers()) == workers


@pytest.mark.parametrize("handle", [-1, 2**64 - 1, 0x0600_7777_0000, 3])
def test_handle_that_names_nothing_gives_the_drivers_code(
    server: ServerProcess, program: Program, handle: int
) -> None:
    workers = sorted(server.session_workers())
    for name, (call, expected) in CALLS.items():
        assert call(handle)[0] == expected, name
    assert program.link.reconnects == 0
    assert_undisturbed(server, program, workers)


def test_null_handle_gives_the_drivers_code(server: ServerProcess, program: Program) -> None:
    workers = sorted(server.session_workers())
    for name in CALLS.keys() - NULL_IS_VALID:
        call, expected = CALLS[name]
        assert call(0)[0] == expected, name
        assert call(None)[0] == expected, name
    assert_undisturbed(server, program, workers)


def test_handles_of_another_session_name_nothing_and_nobody_is_disturbed(
    server: ServerProcess, program: Program, neighbour: ProgramProcess
) -> None:
    kernel, target = neighbour.call("new_tape")
    theirs = {
        # More objects than this session has, so that no number names one of ours by chance.
        "stream": [neighbour.call("stream") for _ in range(20)][-1],
        "event": [neighbour.call("event") for _ in range(20)][-1],
        "module": neighbour.call("load", ".version 7.0\n.target sm_80\n.address_size 64\n"),
        "function": [neighbour.call("new_tape")[0] for _ in range(3)][-1],
        "context": neighbour.call("context"),
    }
    workers = sorted(server.session_workers())
    neighbour.call("append", kernel, target, [1])

    for name, (call, expected) in CALLS.items():
        kind = next((kind for kind in theirs if kind in name), "stream")
        assert call(theirs[kind])[0] == expected, name
    # Addresses are not handles; a copy from memory that is not ours is refused all the same.
    assert cuda.cuMemcpyDtoH(bytearray(8), target + (1 << 33), 8) == (INVALID_VALUE,)
    assert cuda.cuMemFree(target + (1 << 33)) == (INVALID_VALUE,)

    neighbour.call("append", kernel, target, [2])
    assert neighbour.call("number", target) == 12
    assert_undisturbed(server, program, workers)


def test_null_and_missing_host_memory_is_refused(server: ServerProcess, program: Program) -> None:
    workers = sorted(server.session_workers())
    address = program.alloc(64)

    assert cuda.cuMemcpyDtoH(0, address, 16) == (INVALID_VALUE,)
    assert cuda.cuMemcpyDtoH(None, address, 16) == (INVALID_VALUE,)
    assert cuda.cuMemcpyHtoD(address, 0, 16) == (INVALID_VALUE,)
    assert cuda.cuMemcpyDtoH(bytearray(8), address, 16) == (INVALID_VALUE,)
    assert cuda.cuMemcpyHtoD(0, b"0123456789abcdef", 16) == (INVALID_VALUE,)
    assert cuda.cuMemcpyDtoH(bytearray(65), address, 65) == (INVALID_VALUE,)
    assert cuda.cuModuleLoadData(0)[0] == INVALID_VALUE
    assert cuda.cuMemAlloc(0) == (INVALID_VALUE, None)
    assert cuda.cuMemAlloc(-1)[0] in (INVALID_VALUE, RESULT.CUDA_ERROR_OUT_OF_MEMORY)
    assert cuda.cuMemAlloc(2**64 - 1) == (RESULT.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert cuda.cuMemFree(address + 1) == (INVALID_VALUE,)
    assert_undisturbed(server, program, workers)


def test_use_after_destroy_is_refused(server: ServerProcess, program: Program) -> None:
    workers = sorted(server.session_workers())
    stream, event = program.stream(), program.event()
    kernel, address = program.new_tape()
    module = program.load("\n.version 7.0\n.target sm_80\n.address_size 64\n")
    for destroy, handle in (
        (cuda.cuStreamDestroy, stream),
        (cuda.cuEventDestroy, event),
        (cuda.cuModuleUnload, module),
        (cuda.cuMemFree, address),
    ):
        assert destroy(handle) == (RESULT.CUDA_SUCCESS,)
        assert destroy(handle)[0] in (INVALID_HANDLE, INVALID_VALUE)
    assert cuda.cuEventRecord(event, 0) == (INVALID_HANDLE,)
    assert cuda.cuStreamSynchronize(stream) == (INVALID_HANDLE,)
    assert cuda.cuMemsetD8(address, 0, 8) == (INVALID_VALUE,)
    assert kernel
    assert_undisturbed(server, program, workers)
