"""Occupancy follows from what a multiprocessor of the device has."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.cuda_types import CUdevice_attribute as Device
from outlast.cuda_types import CUfunction_attribute as Attribute

MAX_DYNAMIC = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@pytest.mark.parametrize(
    ("threads", "shared", "blocks"),
    [(1024, 0, 2), (256, 0, 8), (32, 0, 32), (33, 0, 32), (100, 0, 16), (64, 48 << 10, 3)],
)
def test_blocks_are_limited_by_what_runs_out_first(
    host: Any, threads: int, shared: int, blocks: int
) -> None:
    kernel = host.kernel("store")
    ask = host.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
    assert ask(kernel, threads, shared) == (0, blocks)
    assert host.cuda.occupancy(kernel, threads, shared, 0) == (0, blocks)


def test_registers_are_limited_too(host: Any) -> None:
    kernel = host.kernel("matmul")
    registers = host.cuda.cuFuncGetAttribute(Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, kernel)[1]
    blocks = host.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 1024, 0)[1]
    assert blocks * 1024 * registers <= 65536


def test_what_no_block_can_have_fits_in_none(host: Any) -> None:
    ask = host.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    kernel = host.kernel("store")
    assert ask(kernel, 1025, 0, 0) == (0, 0)
    assert ask(kernel, 32, 49 << 10, 0) == (0, 0)
    assert ask(host.kernel("bounded", "language"), 65, 0, 0) == (0, 0)
    assert ask(kernel, 0, 0, 0)[0] == ask(kernel, 32, 0, 7)[0] == 1
    assert ask(1, 32, 0, 0)[0] == 400


def test_shared_memory_is_divided_among_blocks(host: Any) -> None:
    kernel = host.kernel("store")
    ask = host.cuda.cuOccupancyAvailableDynamicSMemPerBlock
    assert ask(kernel, 1, 32) == ask(kernel, 2, 32) == (0, 48 << 10)
    assert ask(kernel, 0, 32)[0] == ask(kernel, 1, 2048)[0] == 1
    matmul = host.kernel("matmul")
    for one, static in ((kernel, 0), (matmul, 2048)):
        assert host.cuda.cuFuncSetAttribute(one, MAX_DYNAMIC, (163 << 10) - static)[0] == 0
        assert ask(one, 1, 32) == (0, (163 << 10) - static)
        assert ask(one, 2, 32) == (0, (81 << 10) - static)
    assert host.cuda.cuFuncSetAttribute(matmul, MAX_DYNAMIC, (48 << 10) - 2048)[0] == 0
    for blocks in (1, 2, 3, 7, 32):
        size = ask(kernel, blocks, 32)[1]
        assert host.cuda.cuFuncSetAttribute(kernel, MAX_DYNAMIC, size)[0] == 0
        fitting = host.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 32, size)[1]
        assert fitting >= blocks
    assert host.cuda.cuFuncSetAttribute(kernel, MAX_DYNAMIC, 48 << 10)[0] == 0


def test_the_device_cannot_run_blocks_that_wait_for_each_other_and_says_so(host: Any) -> None:
    attribute = Device.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
    assert host.cuda.cuDeviceGetAttribute(attribute, 0) == (0, 0)
    assert host.cuda.launch_cooperative(host.kernel("store"), 0, (1,) * 6 + (0,), bytes(12)) == 801
