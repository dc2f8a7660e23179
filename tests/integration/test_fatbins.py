"""Fatbins travel whole from wherever a program has them, and are there after a worker's death."""

from __future__ import annotations

from helpers.fatbins import CHOSEN, InMemory, sample, wrapper
from helpers.program import Program, epochs_of, ok
from helpers.server_process import DEVICE, ServerProcess, assert_eventually

from outlast.shim import driver as cuda

#: How each frame of zstd begins.
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def test_a_fatbin_behind_a_wrapper_is_restored_with_what_its_variables_hold(
    server: ServerProcess, program: Program
) -> None:
    outer = InMemory(wrapper(InMemory(sample("speed")).address))
    module = int(ok(cuda.cuModuleLoadData(outer.address)))
    which, (scale, size) = program.kernel(module, "which"), program.variable(module, "scale")
    assert size == 4
    target = program.alloc(8)
    program.launch(which, (("pointer", target),))
    assert program.number(target, 4) == CHOSEN
    program.write(scale, (3).to_bytes(4, "little"))
    program.checkpoint(server.state)
    assert epochs_of(server.state, program.link.session_id)
    before = program.reconnects()
    server.kill_workers()
    assert_eventually(lambda: program.reconnects() > before, "the session is back")
    program.launch(which, (("pointer", target),))
    assert program.number(target, 4) == 3 * CHOSEN


def test_images_that_cannot_run_are_refused_as_cuda_does(program: Program) -> None:
    results = cuda.CUresult
    assert cuda.cuModuleLoadData(sample("cubin"))[0] == results.CUDA_ERROR_NO_BINARY_FOR_GPU
    damaged = sample("size").replace(ZSTD_MAGIC, b"none")
    if DEVICE == "emulated":  # what CUDA says of it is CUDA's
        assert cuda.cuModuleLoadData(damaged)[0] == results.CUDA_ERROR_INVALID_IMAGE
    assert cuda.cuModuleLoadData(sample("size")[:-8])[0] == results.CUDA_ERROR_INVALID_IMAGE
    ok(cuda.cuModuleLoadData(sample("size")))
