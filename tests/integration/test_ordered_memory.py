"""Memory in the order of streams, on a server."""

from __future__ import annotations

import pytest
from helpers.program import Program, ok, tape_of

from outlast.shim import driver as cuda

OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
SIZE = 1 << 20


def test_work_of_a_stream_uses_memory_between_its_allocation_and_its_free(
    program: Program,
) -> None:
    kernel, _ = program.new_tape()
    stream = program.stream(1)
    addresses = set()
    for _ in range(20):
        target = program.alloc_in(stream, 8)
        for digit in (1, 2, 3):
            program.launch(kernel, (("pointer", target), ("u32", digit)), stream)
        data = bytearray(8)
        ok(cuda.cuMemcpyDtoHAsync(data, target, 8, stream))
        program.free_in(stream, target)
        ok(cuda.cuStreamSynchronize(stream))
        assert int.from_bytes(data, "little") == tape_of([1, 2, 3])
        addresses.add(target)
    assert len(addresses) == 1, "the stream did not get its own memory back"


def test_memory_that_one_stream_freed_is_clean_in_the_next(program: Program) -> None:
    first, second = program.stream(1), program.stream(1)
    for _ in range(10):
        old = program.alloc_in(first, SIZE)
        ok(cuda.cuMemsetD8Async(old, 0xAA, SIZE, first))
        program.free_in(first, old)
        new = program.alloc_in(second, SIZE)
        ok(cuda.cuMemsetD8Async(new, 0x55, SIZE, second))
        ok(cuda.cuStreamSynchronize(second))
        ok(cuda.cuStreamSynchronize(first))
        assert program.read(new, SIZE) == b"\x55" * SIZE
        program.free(new)


@pytest.mark.whole_device
def test_a_failed_allocation_says_so_at_once_and_freeing_makes_room(program: Program) -> None:
    stream = program.stream(1)
    free, total = ok(cuda.cuMemGetInfo())
    assert cuda.cuMemAllocAsync(total + 1, stream) == (OUT_OF_MEMORY, None)
    half = free // 2
    address = int(ok(cuda.cuMemAllocAsync(half, stream)))
    assert cuda.cuMemAllocAsync(half + half // 2, stream) == (OUT_OF_MEMORY, None)
    program.free_in(stream, address)
    again = int(ok(cuda.cuMemAllocAsync(half + half // 2, stream)))
    program.free_in(stream, again)


def test_memory_of_a_stream_of_another_context_goes_with_that_context(program: Program) -> None:
    other = program.context()
    ok(cuda.cuCtxPushCurrent(other))
    stream = program.stream()
    ok(cuda.cuCtxPopCurrent())
    ours, theirs = program.alloc_in(0, 64), program.alloc_in(stream, 64)
    ok(cuda.cuCtxDestroy(other))
    assert cuda.cuMemFree(theirs)[0] == 1
    program.write(ours, b"here")
    assert program.read(ours, 4) == b"here"
    program.sync()


def test_the_device_says_that_it_has_pools(program: Program) -> None:
    name = cuda.CUdevice_attribute
    assert ok(cuda.cuDeviceGetAttribute(name.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0)) == 1
    handles = name.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
    assert ok(cuda.cuDeviceGetAttribute(handles, 0)) == 0
    props = cuda.CUmemPoolProps()
    props.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ok(cuda.cuMemPoolCreate(props))
    stream = program.stream(1)
    address = ok(cuda.cuMemAllocFromPoolAsync(SIZE, pool, stream))
    used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    assert ok(cuda.cuMemPoolGetAttribute(pool, used)) == SIZE
    program.free_in(stream, int(address))
    ok(cuda.cuMemPoolDestroy(pool))
