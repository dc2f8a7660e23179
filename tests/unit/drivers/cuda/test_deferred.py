"""What CUDA would wait for is done later: the one thread that calls the device goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fake_gpu import CONTEXT, FakeGpu

from outlast.server.drivers.cuda import CudaDriver, modules

NOT_READY = 600
MIB = 1 << 20


class BusyGpu(FakeGpu):
    """Work ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        #: What was done that waits for the device.
        self.done: list[str] = []

    def cuEventQuery(self, event: int) -> tuple[int]:
        return (NOT_READY if self.busy else 0,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        return (0,)

    def cuCtxDestroy(self, context: int) -> tuple[int]:
        return self._wait(f"context {context:#x}")

    def cuModuleUnload(self, module: int) -> tuple[int]:
        return self._wait("module")

    def _wait(self, what: str) -> tuple[int]:
        assert not self.busy, "it would wait for the device"
        self.done.append(what)
        return (0,)


@pytest.fixture
def gpu() -> BusyGpu:
    return BusyGpu()


@pytest.fixture
def driver(gpu: BusyGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDriver]:
    monkeypatch.setattr(modules, "ROOM", 0.01)
    made = CudaDriver(cuda=gpu)
    made.cuCtxSetCurrent(made.cuDevicePrimaryCtxRetain(0)[1])
    yield made
    gpu.busy = False
    made.close()


def work(gpu: BusyGpu, driver: CudaDriver) -> None:
    """Give the device something that does not end."""
    gpu.busy = True
    assert driver.cuMemsetD8Async(0x1000, 0, 64, 0) == (0,)


def test_a_context_is_destroyed_once_its_work_is_done(gpu: BusyGpu, driver: CudaDriver) -> None:
    error, context = driver.cuCtxCreate(None, 0, 0)
    work(gpu, driver)
    assert driver.cuCtxDestroy(context) == (0,)
    assert driver.cuCtxSetCurrent(context) == (201,)
    assert driver.cuCtxDestroy(context) == (201,)
    assert not driver.done(driver.ticket())
    driver.drain()
    assert gpu.done == []

    gpu.busy = False
    driver.drain()

    assert (error, gpu.done) == (0, [f"context {context:#x}"])
    assert driver.done(driver.ticket())


def test_a_context_without_work_is_destroyed_at_once(gpu: BusyGpu, driver: CudaDriver) -> None:
    _, context = driver.cuCtxCreate(None, 0, 0)
    assert driver.cuCtxDestroy(context) == (0,)
    assert gpu.done == [f"context {context:#x}"]


def test_a_module_is_unloaded_once_the_device_has_nothing_to_do(
    gpu: BusyGpu, driver: CudaDriver
) -> None:
    """Later work too: unloading waits for all of it."""
    _, module = driver.cuModuleLoadData(b"image")
    assert driver.cuModuleUnload(module) == (0,)
    assert gpu.done == ["module"]
    _, module = driver.cuModuleLoadData(b"image")
    work(gpu, driver)
    assert driver.cuModuleUnload(module) == (0,)
    assert driver.cuModuleLoadData(b"image")[0] == 0
    driver.drain()
    assert gpu.done == ["module"]

    gpu.busy = False
    driver.drain()

    assert gpu.done == ["module"] * 2


def test_a_module_makes_room_before_another_is_loaded(
    gpu: BusyGpu, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "ROOM", 20.0)
    _, module = driver.cuModuleLoadData(b"image")
    work(gpu, driver)
    driver.cuModuleUnload(module)
    monkeypatch.setattr(driver, "wait", lambda *_: setattr(gpu, "busy", False))
    load = gpu.cuModuleLoadData
    monkeypatch.setattr(gpu, "cuModuleLoadData", lambda i: gpu.done.append("load") or load(i))
    driver.cuModuleLoadData(b"image")
    assert gpu.done == ["module", "load"]


def test_frees_and_destroyed_streams_wait_for_nothing(gpu: BusyGpu, driver: CudaDriver) -> None:
    _, stream = driver.cuStreamCreateWithPriority(1, 0)
    _, small = driver.cuMemAlloc(4096)
    _, large = driver.cuMemAlloc(64 * MIB)
    work(gpu, driver)
    assert driver.cuMemsetD8Async(small, 0, 64, stream) == (0,)
    assert driver.cuMemFree(small) == (0,)
    assert driver.cuMemFreeAsync(large, stream) == (0,)
    assert driver.cuStreamDestroy(stream) == (0,)
    assert driver.cuDevicePrimaryCtxReset(0) == (0,)
    assert driver.cuMemAlloc(4096)[0] == 0


def test_copies_of_a_stream_that_stands_still_get_more_memory(
    gpu: BusyGpu, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
        monkeypatch.setattr(gpu, call, lambda *_: (0,), raising=False)
    work(gpu, driver)
    monkeypatch.setattr(gpu, "cuEventSynchronize", lambda event: pytest.fail("waits"))
    data = bytes(MIB)
    for _ in range(300):
        assert driver.enqueue_write(0x1000, data, 0) == 0
    reads = [driver.enqueue_read(0x1000, MIB, 0) for _ in range(20)]
    assert [error for error, _ in reads] == [0] * 20
    assert driver.staging._blocks
    assert CONTEXT in driver._contexts
