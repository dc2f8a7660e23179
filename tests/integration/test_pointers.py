"""A pointer is what the session knows of it, never what its number looks like."""

from __future__ import annotations

import ctypes

from helpers import ptx
from helpers.program import Program, ok
from helpers.server_process import ServerProcess

from outlast.shim import driver as cuda

NAME = cuda.CUpointer_attribute
KIND, START, SIZE = (
    NAME.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    NAME.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    NAME.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
)
HOST, DEVICE = (
    cuda.CUmemorytype.CU_MEMORYTYPE_HOST,
    cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE,
)
INVALID_VALUE = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
MAP_FIXED_NOREPLACE = 0x100000


def host_memory_at(address: int) -> None:
    """Map a page of this process at an address."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    private_anonymous, readable_writable = 0x22, 3
    flags = private_anonymous | MAP_FIXED_NOREPLACE
    assert libc.mmap(address, 4096, readable_writable, flags, -1, 0) == address
    ctypes.memset(address, 0x11, 4096)


def unmap(address: int) -> None:
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    assert libc.munmap(address, 4096) == 0


def kind_of(pointer: int) -> tuple[int, ...]:
    """Return kind, start and size of what a pointer points to; zeros for nothing."""
    attributes = ok(cuda.cuPointerGetAttributes(3, [KIND, START, SIZE], pointer))
    return tuple(int(value) for value in attributes)


def test_pointers_are_told_apart_by_what_was_allocated(
    server: ServerProcess, program: Program
) -> None:
    memory, pinned = program.alloc(5000), int(ok(cuda.cuMemAllocHost(5000)))
    variable, size = program.variable(program.load(ptx.LIST), "offset")
    freed = program.alloc(40 << 20)
    program.free(freed)

    def check() -> None:
        assert kind_of(memory + 4999) == (DEVICE, memory, 5000)
        assert kind_of(variable + 7) == (DEVICE, variable, size)
        assert kind_of(pinned + 4999) == (HOST, pinned, 5000)
        for unknown in (memory - 1, freed, freed + 5, id(program)):
            assert kind_of(unknown) == (0, 0, 0)
            assert cuda.cuPointerGetAttribute(KIND, unknown)[0] == INVALID_VALUE

    check()
    server.kill_workers()
    program.sync()
    check()


def test_host_memory_of_the_program_where_the_device_has_its_own_is_not_mistaken_for_it(
    program: Program,
) -> None:
    memory = program.alloc(4096)
    page = memory & ~4095
    elsewhere = page + (1 << 30)
    for address in (page, elsewhere):
        host_memory_at(address)
    try:
        assert kind_of(memory) == (DEVICE, memory, 4096)
        assert kind_of(elsewhere) == (0, 0, 0)
        program.write(memory, b"\x22" * 4096)
        assert program.read(memory, 4096) == b"\x22" * 4096
        assert ctypes.string_at(page, 16) == b"\x11" * 16
        # Nothing is read from or written to a place that may be the device's.
        assert cuda.cuMemcpyDtoH(elsewhere, memory, 16) == (INVALID_VALUE,)
        assert cuda.cuMemcpyHtoD(memory, elsewhere, 16) == (INVALID_VALUE,)
        assert cuda.cuMemHostRegister(elsewhere, 4096, 0) == (INVALID_VALUE,)
        assert ctypes.string_at(elsewhere, 16) == b"\x11" * 16
        assert program.read(memory, 16) == b"\x22" * 16
    finally:
        for address in (page, elsewhere):
            unmap(address)
