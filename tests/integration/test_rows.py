"""Rows travel to the device and back, and a replay puts them where they were."""

from __future__ import annotations

import numpy as np
from helpers.program import Program, ok
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver as cuda

HOST = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
DEVICE = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
ROWS, WIDTH = 700, 1000


def test_a_picture_is_copied_in_parts_and_is_there_after_a_workers_death(
    server: ServerProcess, program: Program
) -> None:
    picture = np.random.default_rng(5).integers(0, 255, (ROWS, WIDTH), np.uint8)
    address, pitch = ok(cuda.cuMemAllocPitch(WIDTH, ROWS, 4))
    other = program.alloc(ROWS * WIDTH)
    up = cuda.CUDA_MEMCPY2D(
        srcMemoryType=HOST, srcHost=picture, srcPitch=WIDTH,
        dstMemoryType=DEVICE, dstDevice=address, dstPitch=pitch,
        WidthInBytes=WIDTH, Height=ROWS,
    )  # fmt: skip
    ok(cuda.cuMemcpy2D(up))
    ok(cuda.cuMemsetD2D8(int(address) + 100, pitch, 7, 50, 60))
    picture[:60, 100:150] = 7
    pack = cuda.CUDA_MEMCPY2D(
        srcMemoryType=DEVICE, srcDevice=address, srcPitch=pitch,
        dstMemoryType=DEVICE, dstDevice=other, dstPitch=WIDTH,
        WidthInBytes=WIDTH, Height=ROWS,
    )  # fmt: skip
    ok(cuda.cuMemcpy2DAsync(pack, program.stream()))
    before = program.reconnects()
    program.sync()
    server.kill_workers()
    assert_eventually(lambda: program.reconnects() > before, "the session is back")
    got = np.zeros((ROWS, WIDTH + 24), np.uint8)
    down = cuda.CUDA_MEMCPY2D(
        srcMemoryType=DEVICE, srcDevice=address, srcPitch=pitch,
        dstMemoryType=HOST, dstHost=got, dstXInBytes=24, dstPitch=WIDTH + 24,
        WidthInBytes=WIDTH, Height=ROWS,
    )  # fmt: skip
    ok(cuda.cuMemcpy2D(down))
    assert (got[:, 24:] == picture).all()
    assert not got[:, :24].any()
    assert program.read(other, ROWS * WIDTH) == picture.tobytes()
