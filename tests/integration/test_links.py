"""What is linked on the device is loaded like any image, over the direct way and the relay."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from helpers import ptx
from helpers.fatbins import CHOSEN, sample
from helpers.program import Program, ok, running
from helpers.server_process import DEVICE, ServerProcess, assert_eventually

from outlast.session.schema import MAX_FRAME
from outlast.shim import driver as cuda

INPUT = cuda.CUjitInputType


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_long_inputs_are_linked_loaded_and_there_after_a_workers_death(
    server: ServerProcess, tmp_path: Path, relay: bool
) -> None:
    with running(server.endpoint, "link", tmp_path / "client", end=True, relay=relay) as program:
        state = ok(cuda.cuLinkCreate(0, [], []))
        for kind, data in (
            (INPUT.CU_JIT_INPUT_PTX, ptx.TAPE.encode()),
            (INPUT.CU_JIT_INPUT_FATBINARY, sample("speed")),
            (INPUT.CU_JIT_INPUT_PTX, f"{ptx.HEAD}//{'x' * MAX_FRAME}\n".encode()),
        ):
            ok(cuda.cuLinkAddData(state, kind, data, len(data), b"part", 0, [], []))
        address, size = ok(cuda.cuLinkComplete(state))
        assert b"append" in ctypes.string_at(address, size)
        module = int(ok(cuda.cuModuleLoadData(address)))
        ok(cuda.cuLinkDestroy(state))
        target = program.alloc(8)
        append, which = program.kernel(module, "append"), program.kernel(module, "which")
        program.append(append, target, [1, 2])
        before = program.reconnects()
        server.kill_workers()
        assert_eventually(lambda: program.reconnects() > before, "the session is back")
        program.append(append, target, [3])
        assert program.number(target) == 123
        program.launch(which, (("pointer", target),))
        assert program.number(target, 4) == CHOSEN


def test_occupancy_and_launch_attributes_are_those_of_the_device(program: Program) -> None:
    module = program.load(ptx.TAPE)
    kernel, target = program.kernel(module, "append"), program.alloc(8)
    assert ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 1024, 0)) == 2
    assert ok(cuda.cuOccupancyAvailableDynamicSMemPerBlock(kernel, 2, 32)) == 48 << 10
    program.set_shared(kernel, 160 << 10)
    assert ok(cuda.cuOccupancyAvailableDynamicSMemPerBlock(kernel, 2, 32)) >= 81 << 10
    grid, block = ok(cuda.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0))
    assert grid * block >= 2048
    parameters = ((target, 7), (ctypes.c_void_p, ctypes.c_uint32))
    ok(cuda.cuLaunchKernelEx(cuda.CUlaunchConfig(), kernel, parameters, 0))
    cooperative = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    config = cuda.CUlaunchConfig(attrs=[cuda.CUlaunchAttribute(cooperative, 1)], numAttrs=1)
    able = DEVICE != "emulated"
    assert cuda.cuLaunchKernelEx(config, kernel, parameters, 0)[0] == (0 if able else 801)
    assert program.number(target) == (77 if able else 7)
