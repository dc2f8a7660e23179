"""Virtual memory: reservations, physical memory, mappings, and who may use them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gate import Gate

from outlast.server.drivers.emulated.vmm import GRANULARITY

MIB = 1 << 20
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE = 1, 2, 101
OPERATING_SYSTEM, ILLEGAL_ADDRESS, NOT_SUPPORTED = 304, 700, 801
READ_WRITE = 3


class Program:
    """A program that manages memory itself."""

    def __init__(self, host: Any) -> None:
        self.host, self.cuda = host, host.cuda
        self.properties = self.cuda.CUmemAllocationProp()
        self.properties.type = self.cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.descriptors = (
            self.cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        )
        self.properties.requestedHandleTypes = self.descriptors
        self.properties.location = self.location(0)

    def location(self, device: int) -> Any:
        location = self.cuda.CUmemLocation()
        location.type = self.cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = device
        return location

    def access(self, flags: int = READ_WRITE, device: int = 0) -> list[Any]:
        access = self.cuda.CUmemAccessDesc()
        access.location = self.location(device)
        access.flags = self.cuda.CUmemAccess_flags(flags)
        return [access]

    def reserve(self, size: int, hint: int = 0) -> int:
        result, address = self.cuda.cuMemAddressReserve(size, 0, hint, 0)
        assert result == 0
        return int(address)

    def create(self, size: int = GRANULARITY) -> int:
        result, handle = self.cuda.cuMemCreate(size, self.properties, 0)
        assert result == 0
        return int(handle)

    def map(self, address: int, handle: int, size: int = GRANULARITY, flags: int = 3) -> None:
        assert self.cuda.cuMemMap(address, size, 0, handle, 0)[0] == 0
        if flags:
            assert self.cuda.cuMemSetAccess(address, size, self.access(flags), 1)[0] == 0

    def unmap(self, address: int, size: int = GRANULARITY) -> None:
        assert self.cuda.cuMemUnmap(address, size)[0] == 0

    def words(self, address: int, count: int = 1) -> list[int]:
        return list(map(int, self.host.get(address, np.zeros(count, np.uint32))))

    def free(self) -> int:
        return int(self.cuda.cuMemGetInfo()[1])


@pytest.fixture
def program(fresh: Any) -> Program:
    return Program(fresh)


@pytest.fixture
def store(program: Program) -> Any:
    """A kernel that stores 5 where it is told to."""
    return program.host.assemble("mov.u32 %r0, 5; st.global.u32 [%o], %r0;")


# -- mapping -----------------------------------------------------------------


def test_kernels_and_copies_use_mapped_memory(program: Program, store: Any) -> None:
    address = program.reserve(8 * GRANULARITY)
    program.map(address + GRANULARITY, program.create())
    last = address + 2 * GRANULARITY - 4
    assert program.words(last) == [0]
    program.host.run(store, 1, 1, last)
    assert program.words(last) == [5]
    assert program.cuda.enqueue_write(last, b"abcd", 0) == 0
    result, data = program.cuda.enqueue_read(last - 4, 8, 0)
    assert result == 0
    assert program.cuda.wait(program.cuda.ticket(), 10.0)
    assert bytes(data) == b"\0\0\0\0abcd"


def test_neighbouring_mappings_are_one_range(program: Program) -> None:
    address = program.reserve(8 * GRANULARITY)
    for n in range(3):
        program.map(address + n * GRANULARITY, program.create(), flags=0)
    size = 3 * GRANULARITY
    assert program.cuda.cuMemSetAccess(address, size, program.access(), 1)[0] == 0
    assert program.cuda.cuMemsetD8(address, 9, size)[0] == 0
    assert program.words(address + 2 * GRANULARITY - 4, 2) == [0x09090909] * 2
    assert program.cuda.cuMemsetD8(address, 9, size + 1)[0] == INVALID_VALUE
    program.unmap(address + GRANULARITY)
    assert program.cuda.cuMemsetD8(address, 9, size)[0] == INVALID_VALUE
    assert program.cuda.cuMemsetD8(address, 9, GRANULARITY)[0] == 0
    assert program.cuda.cuMemsetD8(address + 2 * GRANULARITY, 9, GRANULARITY)[0] == 0


def test_data_stays_with_the_physical_memory(program: Program) -> None:
    address, handle = program.reserve(8 * GRANULARITY), program.create()
    program.map(address, handle)
    program.map(address + 4 * GRANULARITY, handle)
    program.cuda.cuMemsetD32(address, 77, 1)
    assert program.words(address + 4 * GRANULARITY) == [77]
    program.unmap(address)
    program.unmap(address + 4 * GRANULARITY)
    other = program.create()
    program.map(address, other)
    assert program.words(address) == [0]
    program.map(address + 6 * GRANULARITY, handle)
    assert program.words(address + 6 * GRANULARITY) == [77]


def test_memory_lives_until_its_last_handle_and_mapping_are_gone(program: Program) -> None:
    total = program.free()
    address, handle = program.reserve(4 * GRANULARITY), program.create()
    assert program.free() == total - GRANULARITY
    program.map(address, handle)
    assert program.cuda.cuMemRelease(handle)[0] == 0
    assert program.cuda.cuMemRelease(handle)[0] == INVALID_VALUE
    program.cuda.cuMemsetD32(address, 3, 1)
    assert program.words(address) == [3]
    assert program.free() == total - GRANULARITY
    program.unmap(address)
    assert program.free() == total


def test_physical_memory_and_allocations_share_the_device(make_host: Any) -> None:
    program = Program(make_host(memory=16 * MIB))
    plain = program.cuda.cuMemAlloc(8 * MIB)[1]
    assert program.cuda.cuMemCreate(10 * MIB, program.properties, 0) == (OUT_OF_MEMORY, None)
    handle = program.create(8 * MIB)
    assert program.cuda.cuMemAlloc(1) == (OUT_OF_MEMORY, None)
    program.cuda.cuMemFree(plain)
    assert program.free() == 8 * MIB
    assert program.cuda.cuMemRelease(handle)[0] == 0
    assert program.free() == 16 * MIB


# -- rights ------------------------------------------------------------------


@pytest.mark.parametrize("case", ["reserved", "mapped", "taken away"])
def test_memory_without_access_faults(program: Program, store: Any, case: str) -> None:
    address = program.reserve(4 * GRANULARITY)
    if case != "reserved":
        program.map(address, program.create(), flags=0 if case == "mapped" else READ_WRITE)
    if case == "taken away":
        assert program.cuda.cuMemSetAccess(address, GRANULARITY, program.access(0), 1)[0] == 0
    assert program.cuda.cuMemsetD8(address, 1, 4)[0] == INVALID_VALUE
    assert program.host.launch(store, 1, 1, address) == 0
    assert program.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    assert f"{address:#x}" in program.cuda.fault().reason


def test_unmapping_below_a_kernel_is_a_fault_and_no_crash(program: Program) -> None:
    address, gate = program.reserve(4 * GRANULARITY), Gate(program.cuda)
    program.map(address, program.create())
    gate.store_behind(address, 1)
    program.unmap(address)
    gate.open()
    assert program.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


def test_mapping_and_unmapping_wait_for_no_kernel(program: Program) -> None:
    address, gate = program.reserve(4 * GRANULARITY), Gate(program.cuda)
    program.map(address, program.create())
    gate.store_behind(address, 1)
    handle = program.create()
    program.map(address + GRANULARITY, handle)
    program.unmap(address + GRANULARITY)
    assert program.cuda.cuMemRelease(handle)[0] == 0
    assert not program.cuda.done(program.cuda.ticket())
    gate.open()
    assert program.words(address) == [1]


# -- addresses ---------------------------------------------------------------


def test_a_hint_is_honoured_where_addresses_are_free(program: Program) -> None:
    base = program.cuda.devices()[0].arena_base + (1 << 30)
    assert program.reserve(64 * MIB, base) == base
    moved = program.reserve(64 * MIB, base + 32 * MIB)
    assert moved % GRANULARITY == 0
    assert not base - 64 * MIB < moved < base + 64 * MIB
    assert program.cuda.cuMemAddressFree(base, 64 * MIB)[0] == 0
    assert program.reserve(64 * MIB, base + 32 * MIB) == base + 32 * MIB


def test_reservations_and_allocations_keep_apart(program: Program) -> None:
    plain = program.cuda.cuMemAlloc(4096)[1]
    near = program.reserve(4 * MIB, plain // GRANULARITY * GRANULARITY)
    assert near != plain // GRANULARITY * GRANULARITY
    assert not near <= plain < near + 4 * MIB
    other = program.cuda.cuMemAlloc(64 * MIB)[1]
    assert other >= near + 4 * MIB or other + 64 * MIB <= near
    result, aligned = program.cuda.cuMemAddressReserve(4 * MIB, 64 * MIB, 0, 0)
    assert (result, aligned % (64 * MIB)) == (0, 0)


def test_addresses_that_are_given_back_hold_plain_zeros(program: Program) -> None:
    plain = program.cuda.cuMemAlloc(GRANULARITY)[1]
    program.cuda.cuMemFree(plain)
    address, handle = program.reserve(GRANULARITY, plain), program.create()
    assert address == plain
    # Work that is still pending when its memory goes, as after a missing synchronisation.
    program.map(address, handle)
    program.cuda.cuMemsetD8(address, 0xFF, GRANULARITY)
    program.unmap(address)
    assert program.cuda.cuMemAddressFree(address, GRANULARITY)[0] == 0
    assert program.cuda.cuMemAlloc(GRANULARITY) == (0, address)
    assert program.words(address, 4) == [0] * 4
    program.cuda.cuMemsetD32(address, 9, 1)
    assert program.words(address) == [9]


def test_a_small_reservation_can_be_given_back_where_nothing_ever_was(program: Program) -> None:
    far = program.cuda.devices()[0].arena_base + (30 << 30)
    assert program.reserve(4096, far) == far
    assert program.cuda.cuMemAddressFree(far, 4096)[0] == 0
    assert program.cuda.cuCtxSynchronize()[0] == 0
    assert program.reserve(GRANULARITY, far) == far


def test_addresses_of_another_device_do_not_take_this_ones_memory(make_host: Any) -> None:
    program = Program(make_host(devices=2))
    second = program.cuda.devices()[1].arena_base + (1 << 30)
    assert program.reserve(4 * MIB, second) == second
    program.properties.location = program.location(1)
    free = program.free()
    program.map(second, program.create(), flags=0)
    assert program.free() == free
    granted = program.cuda.cuMemSetAccess(second, GRANULARITY, program.access(device=1), 1)
    assert granted == (0,)
    assert program.cuda.cuMemsetD32(second, 4, 1)[0] == 0
    assert program.words(second) == [4]


def test_each_device_uses_the_memory_that_it_was_given(make_host: Any) -> None:
    host = make_host(devices=2)
    program = Program(host)
    store = host.assemble("mov.u32 %r0, 5; st.global.u32 [%o], %r0;")
    address = program.reserve(4 * GRANULARITY)
    program.properties.location = program.location(1)
    program.map(address, program.create(), flags=0)
    for device in (1, 0):
        granted = program.cuda.cuMemSetAccess(
            address, GRANULARITY, program.access(device=device), 1
        )
        assert granted == (0,)
    host.run(store, 1, 1, address)
    assert program.words(address) == [5]
    taken = program.cuda.cuMemSetAccess(address, GRANULARITY, program.access(0), 1)
    assert taken == (0,)
    assert program.words(address) == [5]  # the other device may still use it
    host.launch(store, 1, 1, address)
    assert host.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


# -- descriptors -------------------------------------------------------------


def test_an_exported_descriptor_names_the_same_bytes(program: Program) -> None:
    address, handle = program.reserve(8 * GRANULARITY), program.create()
    program.map(address, handle)
    free = program.free()
    result, descriptor = program.cuda.cuMemExportToShareableHandle(handle, 1, 0)
    assert result == 0
    result, again = program.cuda.cuMemImportFromShareableHandle(descriptor, 1)
    os.close(descriptor)
    assert result == 0
    # It is the same memory, so it is counted once and lives on with either handle.
    assert program.free() == free
    assert program.cuda.cuMemRelease(handle)[0] == 0
    program.map(address + 2 * GRANULARITY, again)
    program.cuda.cuMemsetD32(address, 6, 1)
    assert program.words(address + 2 * GRANULARITY) == [6]


IMPORTING_PROGRAM = """
import sys
from outlast.server.drivers.emulated import EmulatedDriver
base, descriptor = int(sys.argv[1]), int(sys.argv[2])
cuda = EmulatedDriver(base=base, arena_size=8 << 30)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
size = 2 << 20
result, handle = cuda.cuMemImportFromShareableHandle(descriptor, 1)
assert result == 0
assert cuda.cuMemAddressReserve(size, 0, base + (1 << 30), 0) == (0, base + (1 << 30))
assert cuda.cuMemMap(base + (1 << 30), size, 0, handle, 0) == (0,)
access = cuda.CUmemAccessDesc(cuda.CUmemLocation(1, 0), 3)
assert cuda.cuMemSetAccess(base + (1 << 30), size, [access], 1) == (0,)
back = bytearray(4)
assert cuda.cuMemcpyDtoH(back, base + (1 << 30), 4) == (0,)
assert back == b"from", bytes(back)
assert cuda.cuMemsetD32(base + (1 << 30), 1234, 1) == (0,)
cuda.cuCtxSynchronize()
cuda.close()
"""


def test_another_process_maps_the_same_memory(program: Program) -> None:
    address, handle = program.reserve(GRANULARITY), program.create()
    program.map(address, handle)
    assert program.cuda.cuMemcpyHtoD(address, b"from", 4)[0] == 0
    descriptor = program.cuda.cuMemExportToShareableHandle(handle, 1, 0)[1]
    base = program.cuda.devices()[0].arena_base
    try:
        child = subprocess.run(
            [sys.executable, "-c", IMPORTING_PROGRAM, str(base), str(descriptor)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[descriptor],
            timeout=50,
            check=False,
        )
    finally:
        os.close(descriptor)
    assert child.returncode == 0
    assert program.words(address) == [1234]


def test_other_files_are_no_device_memory(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(GRANULARITY))
    unsealed = os.memfd_create("outlast-device-0", os.MFD_CLOEXEC)
    os.ftruncate(unsealed, GRANULARITY)
    plain = os.open(tmp_path / "file", os.O_RDWR)
    for descriptor in (unsealed, plain, 1 << 20, -1):
        refused = program.cuda.cuMemImportFromShareableHandle(descriptor, 1)
        assert refused == (INVALID_VALUE, None)
    os.close(unsealed)
    os.close(plain)


def test_memory_that_was_not_made_for_it_cannot_be_exported(program: Program) -> None:
    handle = program.create()
    assert program.cuda.cuMemExportToShareableHandle(handle, 2, 0) == (INVALID_VALUE, None)
    kinds = program.cuda.CUmemAllocationHandleType
    program.properties.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_NONE
    handle = program.create()
    assert program.cuda.cuMemExportToShareableHandle(handle, 1, 0) == (INVALID_VALUE, None)


# -- errors ------------------------------------------------------------------


def test_bad_arguments_are_refused(program: Program) -> None:
    cuda, size = program.cuda, GRANULARITY
    address, handle = program.reserve(4 * size), program.create(2 * size)
    program.map(address, handle, 2 * size)
    access, small = program.access(), program.reserve(4096)
    for returned in (
        cuda.cuMemAddressReserve(0, 0, 0, 0),
        cuda.cuMemAddressReserve(size + 1, 0, 0, 0),
        cuda.cuMemAddressReserve(size, 3, 0, 0),
        cuda.cuMemAddressReserve(size, 0, 5, 0),
        cuda.cuMemAddressReserve(size, 0, 0, 1),
        cuda.cuMemAddressFree(address, size),
        cuda.cuMemAddressFree(address, 4 * size),
        cuda.cuMemAddressFree(address + size, size),
        cuda.cuMemCreate(0, program.properties, 0),
        cuda.cuMemCreate(4096, program.properties, 0),
        cuda.cuMemCreate(size, None, 0),
        cuda.cuMemCreate(size, cuda.CUmemAllocationProp(), 0),
        cuda.cuMemRelease(7),
        cuda.cuMemMap(address, size, 0, handle, 0),
        cuda.cuMemMap(address + 2 * size, 4 * size, 0, handle, 0),
        cuda.cuMemMap(address + 2 * size, 3 * size, 0, handle, 0),
        cuda.cuMemMap(address + 2 * size, size, size, handle, 0),
        cuda.cuMemMap(address + 2 * size, size, 0, 7, 0),
        cuda.cuMemMap(address + 2 * size + 4096, size, 0, handle, 0),
        cuda.cuMemMap(address + 1024 * size, size, 0, handle, 0),
        cuda.cuMemUnmap(address, size),
        cuda.cuMemUnmap(address + size, size),
        cuda.cuMemUnmap(address, 3 * size),
        cuda.cuMemUnmap(address + 2 * size, size),
        cuda.cuMemSetAccess(address, size, access, 1),
        cuda.cuMemSetAccess(address + 2 * size, size, access, 1),
        cuda.cuMemSetAccess(address, 2 * size, access, 2),
        cuda.cuMemSetAccess(address, 2 * size, None, 0),
        cuda.cuMemGetAllocationGranularity(program.properties, 9),
        cuda.cuMemMap(small, size, 0, handle, 0),
    ):
        assert returned[0] == INVALID_VALUE
    assert cuda.cuMemAddressReserve(1 << 45, 0, 0, 0) == (OUT_OF_MEMORY, None)
    assert cuda.cuMemSetAccess(address, 2 * size, program.access(1), 1) == (NOT_SUPPORTED,)
    assert cuda.cuMemSetAccess(address, 2 * size, program.access(3, 5), 1) == (INVALID_DEVICE,)
    assert cuda.cuMemGetAllocationGranularity(program.properties, 0) == (0, size)
    assert cuda.cuMemFree(address) == (INVALID_VALUE,)


def test_want_of_descriptors_is_an_error_of_the_system(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, handle = program.free(), program.create()

    def full(*_: Any) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    monkeypatch.setattr(os, "dup", full)
    refused = program.cuda.cuMemCreate(GRANULARITY, program.properties, 0)
    assert refused == (OPERATING_SYSTEM, None)
    assert program.cuda.cuMemExportToShareableHandle(handle, 1, 0) == (OPERATING_SYSTEM, None)
    assert program.free() == total - GRANULARITY
