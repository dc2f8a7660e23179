"""Peer access of the cuda device, with emulated ones in place of GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
from helpers.emulated_bindings import EmulatedBindings

from outlast.server.drivers.cuda import CudaDriver

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1D00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 16 << 30
MIB = 1 << 20
ILLEGAL_ADDRESS, UNSUPPORTED, ALREADY, NOT_ENABLED, INVALID_CONTEXT = 700, 217, 704, 705, 201
OUT_OF_MEMORY = 2
COPY = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 out, .param .u64 from)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [from];
    ld.global.u32 %r1, [%rd2];
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


class Bindings(EmulatedBindings):
    """Two devices; each change of who may use what is noted."""

    def __init__(self) -> None:
        super().__init__(base=DEVICE, arena_size=RANGE, memory=1 << 30, devices=2)
        #: (ordinal, whether it may) of each chunk.
        self.accesses: list[tuple[int, bool]] = []
        self.refuses = False

    def cuMemSetAccess(self, ptr, size, desc, count):  # type: ignore[no-untyped-def]
        if self.refuses:
            return (OUT_OF_MEMORY,)
        self.accesses += [(access.location.id, bool(access.flags)) for access in desc]
        return super().cuMemSetAccess(ptr, size, desc, count)


class Pair:
    """Two devices; the second reads what is on the first."""

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        self.first, self.second = (driver.cuDevicePrimaryCtxRetain(n)[1] for n in range(2))
        self.near = self.word(self.first, 7)
        self.own = self.word(self.second, 0)
        _, module = driver.cuModuleLoadData(COPY)
        _, self.copy = driver.cuModuleGetFunction(module, b"copy")

    def word(self, context: int, value: int, size: int = 4) -> int:
        """Allocate in a context, which stays current."""
        assert self.driver.cuCtxSetCurrent(context) == (0,)
        error, address = self.driver.cuMemAlloc(size)
        assert error == 0
        assert self.driver.cuMemsetD32Async(address, value, 1, 0) == (0,)
        return address

    def read(self, source: int) -> int:
        """Have the second device read a word; return what it read, or minus the fault."""
        driver = self.driver
        assert driver.cuCtxSetCurrent(self.second) == (0,)
        parameters = self.own.to_bytes(8, "little") + source.to_bytes(8, "little")
        assert driver.launch_packed(self.copy, 0, 1, 1, 1, 1, 1, 1, 0, parameters) == 0
        assert driver.wait(driver.ticket(), 10.0)
        error, data = driver.enqueue_read(self.own, 4, 0)
        assert driver.wait(driver.ticket(), 10.0)
        fault = driver.fault()
        assert bool(error) == bool(fault)
        return -fault.result if fault else int.from_bytes(data, "little")


@pytest.fixture
def bindings() -> Iterator[Bindings]:
    made = Bindings()
    yield made
    made.close()


@pytest.fixture
def pair(bindings: Bindings) -> Iterator[Pair]:
    driver = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
    yield Pair(driver)
    driver.close()


def test_a_device_cannot_use_anothers_memory_at_first(pair: Pair) -> None:
    assert pair.read(pair.near) == -ILLEGAL_ADDRESS


def test_a_device_that_was_let_uses_what_is_mapped_and_what_comes(pair: Pair) -> None:
    assert pair.driver.cuCtxEnablePeerAccess(pair.first) == (0,)
    assert pair.read(pair.near) == 7
    later = pair.word(pair.first, 8, 64 * MIB)
    assert pair.read(later) == 8
    assert pair.driver.cuCtxEnablePeerAccess(pair.first) == (ALREADY,)


def test_access_ends_once_the_work_that_may_need_it_is_done(
    pair: Pair, bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pair.driver
    driver.cuCtxEnablePeerAccess(pair.first)
    monkeypatch.setattr(driver.timeline, "done", lambda ticket: False)
    bindings.accesses.clear()
    assert driver.cuCtxDisablePeerAccess(pair.first) == (0,)
    assert driver.cuCtxDisablePeerAccess(pair.first) == (NOT_ENABLED,)
    assert bindings.accesses == []
    monkeypatch.undo()
    assert driver.wait(driver.ticket(), 10.0)
    driver.drain()
    assert bindings.accesses == [(1, False)]
    assert pair.read(pair.near) == -ILLEGAL_ADDRESS


def test_access_that_is_had_again_meanwhile_stays(
    pair: Pair, bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pair.driver
    driver.cuCtxEnablePeerAccess(pair.first)
    monkeypatch.setattr(driver.timeline, "done", lambda ticket: False)
    driver.cuCtxDisablePeerAccess(pair.first)
    assert driver.cuCtxEnablePeerAccess(pair.first) == (0,)
    monkeypatch.undo()
    assert driver.wait(driver.ticket(), 10.0)
    driver.drain()
    assert pair.read(pair.near) == 7


def test_access_lasts_until_the_last_context_has_given_it_back(pair: Pair) -> None:
    driver = pair.driver
    driver.cuCtxEnablePeerAccess(pair.first)
    _, other = driver.cuCtxCreate(None, 0, 1)
    assert driver.cuCtxEnablePeerAccess(pair.first) == (0,)
    assert driver.cuCtxDestroy(other) == (0,)
    assert pair.read(pair.near) == 7
    assert driver.wait(driver.ticket(), 10.0)
    assert driver.cuCtxDisablePeerAccess(pair.first) == (0,)
    assert pair.read(pair.near) == -ILLEGAL_ADDRESS


def test_what_cannot_be_is_refused(pair: Pair) -> None:
    driver = pair.driver
    assert driver.cuCtxEnablePeerAccess(pair.second) == (INVALID_CONTEXT,)
    assert driver.cuCtxEnablePeerAccess(12345) == (INVALID_CONTEXT,)
    assert driver.cuCtxEnablePeerAccess(pair.first, 1) == (1,)
    driver.cuCtxCreate(None, 0, 1)
    assert driver.cuCtxEnablePeerAccess(pair.second) == (UNSUPPORTED,)


def test_access_that_a_chunk_refuses_is_not_had(pair: Pair, bindings: Bindings) -> None:
    bindings.refuses = True
    assert pair.driver.cuCtxEnablePeerAccess(pair.first) == (OUT_OF_MEMORY,)
    bindings.refuses = False
    assert pair.driver.cuCtxDisablePeerAccess(pair.first) == (NOT_ENABLED,)
    assert pair.driver.cuCtxEnablePeerAccess(pair.first) == (0,)
    assert pair.read(pair.near) == 7


def test_copies_between_devices_need_no_access(
    pair: Pair, bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, copies = pair.driver, []
    peer: Callable[..., tuple[int]] = bindings.cuMemcpyPeerAsync
    monkeypatch.setattr(
        bindings, "cuMemcpyPeerAsync", lambda *args: copies.append(args[1:4:2]) or peer(*args)
    )
    assert driver.cuMemcpyDtoDAsync(pair.own, pair.near, 4, 0) == (0,)
    driver.order_all()
    error, data = driver.enqueue_read(pair.own, 4, 0)
    assert driver.wait(driver.ticket(), 10.0)
    assert (error, ctypes.c_uint32.from_buffer_copy(data).value) == (0, 7)
    assert copies == [(pair.second, pair.first)]


def test_the_table_tells_what_each_device_can_do(pair: Pair) -> None:
    first, second = pair.driver.devices()
    assert first.peers == {1: {1: 0, 2: 1, 3: 1, 4: 0, 5: 0}}
    assert list(second.peers) == [0]
