"""Device memory: addresses, limits, copies and filling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import CheckpointError, ConfigError, RestoreFailed
from outlast.server.drivers.base import Region
from outlast.server.drivers.emulated.arena import GUARD, PAGE, FirstFit
from outlast.server.drivers.emulated.state import memory_size

INVALID_VALUE, OUT_OF_MEMORY = 1, 2


def allocate(host: Any, size: int) -> int:
    result, address = host.cuda.cuMemAlloc(size)
    assert result == 0
    return int(address)


def test_the_lowest_gap_that_fits_is_taken(fresh: Any) -> None:
    base = fresh.cuda.devices()[0].arena_base + GUARD
    first, second, third = (allocate(fresh, 10_000) for _ in range(3))
    assert (first, second, third) == (base, base + 3 * PAGE, base + 6 * PAGE)
    assert fresh.cuda.cuMemFree(first)[0] == 0
    assert allocate(fresh, 4 * PAGE) == base + 9 * PAGE
    assert allocate(fresh, 1) == base
    assert allocate(fresh, 2 * PAGE) == base + PAGE


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(0, 30)), max_size=60))
def test_addresses_depend_on_the_live_set_only(steps: list[tuple[int, bool, int]]) -> None:
    space = FirstFit(100, 200)
    live: dict[int, int] = {}
    for size, free, choice in steps:
        if free and live:
            address = sorted(live)[choice % len(live)]
            space.release(address, live.pop(address))
        else:
            got = space.take(size)
            taken = {p for a, s in live.items() for p in range(a, a + s)}
            fits = [a for a in range(100, 201 - size) if not taken & set(range(a, a + size))]
            assert got == (fits[0] if fits else None)
            if got is not None:
                live[got] = size
    again = FirstFit(100, 200)
    for address in sorted(live, reverse=True):
        assert again.take_at(address, live[address])
    assert again.take(7) == space.take(7)


def test_fresh_memory_is_zero_also_where_other_data_was(fresh: Any) -> None:
    for size in (100, 1 << 20):
        address = allocate(fresh, size)
        assert fresh.cuda.cuMemsetD8(address, 0xFF, size)[0] == 0
        fresh.cuda.cuMemFree(address)
        assert allocate(fresh, size) == address
        assert not fresh.get(address, np.ones(size, np.uint8)).any()
        fresh.cuda.cuMemFree(address)


def test_memory_runs_out_and_comes_back(make_host: Any) -> None:
    host = make_host(memory=1 << 20)
    assert host.cuda.cuMemGetInfo() == (0, 1 << 20, 1 << 20)
    address = allocate(host, 1 << 19)
    assert host.cuda.cuMemAlloc((1 << 19) + 1) == (OUT_OF_MEMORY, None)
    assert host.cuda.cuMemGetInfo() == (0, 1 << 19, 1 << 20)
    host.cuda.cuMemFree(address)
    assert allocate(host, 1 << 20) == address


def test_bad_sizes_and_pointers_are_refused(host: Any) -> None:
    cuda, address = host.cuda, allocate(host, 100)
    assert cuda.cuMemAlloc(0) == (INVALID_VALUE, None)
    assert cuda.cuMemAlloc(-1) == (INVALID_VALUE, None)
    assert cuda.cuMemAlloc(1 << 62) == (OUT_OF_MEMORY, None)
    assert cuda.cuMemFree(0)[0] == 0
    assert cuda.cuMemFree(address + 1)[0] == INVALID_VALUE
    assert cuda.cuMemFree(address)[0] == 0
    assert cuda.cuMemFree(address)[0] == INVALID_VALUE
    assert cuda.cuMemGetAddressRange(address)[0] == INVALID_VALUE


def test_an_address_range_is_the_allocation_around_it(host: Any) -> None:
    address = allocate(host, 100)
    assert host.cuda.cuMemGetAddressRange(address + 99) == (0, address, 100)
    assert host.cuda.cuMemGetAddressRange(address + 100)[0] == INVALID_VALUE


def test_copies_beyond_an_allocation_are_refused(host: Any) -> None:
    cuda, address = host.cuda, allocate(host, 100)
    data = np.zeros(200, np.uint8)
    assert cuda.cuMemcpyHtoD(address, data, 101)[0] == INVALID_VALUE
    assert cuda.cuMemcpyDtoH(data, address + 1, 100)[0] == INVALID_VALUE
    assert cuda.cuMemcpyDtoD(address, 16, 4)[0] == INVALID_VALUE
    assert cuda.cuMemsetD32(address + 96, 1, 2)[0] == INVALID_VALUE
    assert cuda.cuMemsetD32(address + 1, 1, 1)[0] == INVALID_VALUE
    assert cuda.cuMemcpyHtoD(address, None, 4)[0] == INVALID_VALUE
    assert cuda.cuMemcpyHtoD(address, b"abc", 4)[0] == INVALID_VALUE
    assert cuda.cuMemcpyDtoH(b"abcd", address, 4)[0] == INVALID_VALUE
    assert cuda.cuMemcpyHtoD(address, data, 0)[0] == 0
    assert cuda.enqueue_write(address, bytes(101), 0) == INVALID_VALUE
    assert cuda.enqueue_read(address, 101, 0)[0] == INVALID_VALUE


def test_filling_with_values_of_every_width(host: Any) -> None:
    cuda, address = host.cuda, allocate(host, 24)
    assert cuda.cuMemsetD8(address, 0x1FF, 8)[0] == 0
    assert cuda.cuMemsetD16Async(address + 8, 0xABCD, 4, 0)[0] == 0
    assert cuda.cuMemsetD32(address + 16, 0x01020304, 2)[0] == 0
    expected = b"\xff" * 8 + b"\xcd\xab" * 4 + b"\x04\x03\x02\x01" * 2
    assert host.get(address, np.zeros(24, np.uint8)).tobytes() == expected


@pytest.mark.parametrize("size", [1, 4096, 4097, 1 << 20])
def test_asynchronous_copies_take_the_bytes_at_the_call(host: Any, size: int) -> None:
    cuda, address, other = host.cuda, allocate(host, size), allocate(host, size)
    data = np.full(size, 3, np.uint8)
    assert cuda.cuMemcpyHtoDAsync(address, data.ctypes.data, size, 0)[0] == 0
    data[:] = 9
    assert cuda.cuMemcpyDtoDAsync(other, address, size, 0)[0] == 0
    back = bytearray(size)
    assert cuda.cuMemcpyDtoHAsync(back, other, size, 0)[0] == 0
    assert back == bytes([3]) * size


def test_an_exact_address_is_given_or_refused(fresh: Any) -> None:
    cuda, address = fresh.cuda, allocate(fresh, PAGE)
    far = fresh.cuda.devices()[0].arena_base + (8 << 30)
    assert cuda.allocate_at(0, far, 100) == 0
    assert cuda.allocate_at(0, far, 100) == OUT_OF_MEMORY
    assert cuda.allocate_at(0, address, 1) == OUT_OF_MEMORY
    assert cuda.allocate_at(0, far + 12, 1) == OUT_OF_MEMORY
    assert cuda.allocate_at(0, 0, 1) == OUT_OF_MEMORY
    assert cuda.allocate_at(7, far, 1) == 101
    assert cuda.cuMemsetD8(far, 1, 100)[0] == 0
    assert cuda.cuMemFree(far)[0] == 0


def test_a_view_is_the_memory_itself_and_nothing_else(fresh: Any) -> None:
    address = allocate(fresh, 10)
    (region,) = fresh.cuda.regions()
    assert (region.address, region.size, region.kind) == (address, 10, "alloc")
    fresh.cuda.view(region)[:] = b"0123456789"
    assert fresh.get(address, np.zeros(10, np.uint8)).tobytes() == b"0123456789"
    with pytest.raises(CheckpointError):
        fresh.cuda.view(Region(0, address, 11))


def test_two_devices_have_arenas_of_their_own(make_host: Any) -> None:
    host = make_host(devices=2)
    first, second = host.cuda.devices()
    assert second.arena_base == first.arena_base + first.arena_size
    assert host.cuda.cuDeviceGetCount() == (0, 2)
    assert first.uuid != second.uuid
    near = allocate(host, 4)
    context = host.cuda.cuDevicePrimaryCtxRetain(1)[1]
    host.cuda.cuCtxSetCurrent(context)
    far = allocate(host, 4)
    assert far - second.arena_base == near - first.arena_base
    host.cuda.cuMemsetD32(near, 77, 1)
    host.cuda.cuMemcpyDtoD(far, near, 4)
    assert host.get(far, np.zeros(1, np.int32))[0] == 77
    assert host.cuda.cuCtxGetDevice() == (0, 1)


def test_a_taken_address_range_is_a_typed_error(make_driver: Any) -> None:
    taken = make_driver().devices()[0].arena_base
    with pytest.raises(RestoreFailed, match=f"{taken:#x}"):
        make_driver(base=taken)


@pytest.mark.parametrize("text", ["0", "-4", "4GiB", "1.5", "٣"])
def test_a_bad_memory_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LUPINE_EMULATED_MEMORY", text)
    with pytest.raises(ConfigError):
        memory_size()


def test_the_environment_sets_the_memory_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUPINE_EMULATED_MEMORY", "123456")
    assert memory_size() == 123456


@pytest.mark.parametrize("options", [{"devices": 0}, {"memory": 1 << 50}, {"watchdog_s": 0}])
def test_bad_options_are_refused(make_driver: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_driver(**options)


def test_memory_in_a_streams_order_is_memory_like_any_other(fresh: Any) -> None:
    cuda = fresh.cuda
    stream = cuda.cuStreamCreate(1)[1]
    result, address = cuda.cuMemAllocAsync(100, stream)
    assert result == 0
    assert not fresh.get(address, np.ones(100, np.uint8)).any()
    assert cuda.cuMemFree(address)[0] == 0
    plain = allocate(fresh, 100)
    assert plain == address
    assert cuda.cuMemsetD8Async(plain, 1, 100, stream)[0] == 0
    assert cuda.cuMemFreeAsync(plain, stream)[0] == 0
    assert cuda.cuMemFreeAsync(plain, stream)[0] == INVALID_VALUE
    assert cuda.cuMemAllocAsync(100, 0) == (0, address)
    assert not fresh.get(address, np.ones(100, np.uint8)).any()
    assert cuda.cuMemAllocAsync(100, 0x77) == (400, None)
    assert cuda.cuMemAllocAsync(0, stream) == (INVALID_VALUE, None)
    assert cuda.cuMemFreeAsync(address, 0x77)[0] == 400
    assert cuda.cuMemFreeAsync(0, stream)[0] == 0


def test_memory_in_a_streams_order_belongs_to_the_streams_context(fresh: Any) -> None:
    cuda = fresh.cuda
    other = cuda.cuCtxCreate(None, 0, 0)[1]
    stream = cuda.cuStreamCreate(0)[1]
    cuda.cuCtxSetCurrent(fresh.context)
    address = cuda.cuMemAllocAsync(100, stream)[1]
    assert cuda.allocate_at(0, address + PAGE, 100, stream) == 0
    assert cuda.allocate_at(0, address + 2 * PAGE, 100, 0x77) == 400
    kept = allocate(fresh, 100)
    assert cuda.cuCtxDestroy(other)[0] == 0
    assert [region.address for region in cuda.regions()] == [kept]
