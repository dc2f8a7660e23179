"""The cuda device itself, in this process: order, waiting, copies, modules."""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import ptx
from helpers.kernels import PTX

from outlast.server.drivers.cuda import CudaDriver

#: Nobody else's kernels and contexts on the device: these tests say what is over before what.
pytestmark = [pytest.mark.gpu, pytest.mark.whole_device]

KERNELS = Path(__file__).resolve().parents[2] / "examples" / "resume_training" / "kernels.ptx"
#: Not where a session's server would put its memory: both may run on this machine.
BASE = 0x1200_0000_0000
LONG = 0.3  # seconds, of a kernel that others are compared with
ENOUGH = 20.0  # seconds
MIB = 1 << 20


class Device:
    """The driver with a context and the kernels that the tests launch."""

    def __init__(self) -> None:
        self.driver = CudaDriver(base=BASE)
        error, context = self.driver.cuDevicePrimaryCtxRetain(0)
        assert not error
        assert self.driver.cuCtxSetCurrent(context) == (0,)
        self.module = self.made(self.driver.cuModuleLoadData(PTX.encode() + b"\0"))
        self._increment = self.made(self.driver.cuModuleGetFunction(self.module, b"increment"))
        self._linger = self.made(self.driver.cuModuleGetFunction(self.module, b"linger"))

    @staticmethod
    def made(answer: tuple[int, int]) -> int:
        """Return what a call made."""
        assert answer[0] == 0, answer
        return answer[1]

    def stream(self, flags: int = 1) -> int:
        """Make a stream, by default one that is not ordered with the legacy one."""
        return self.made(self.driver.cuStreamCreateWithPriority(flags, 0))

    def alloc(self, size: int) -> int:
        """Allocate zeroed memory."""
        address = self.made(self.driver.cuMemAlloc(size))
        assert self.driver.cuMemsetD8Async(address, 0, size, 0) == (0,)
        assert self.driver.wait(self.driver.ticket(), ENOUGH)
        return address

    def increment(self, address: int, stream: int = 0) -> None:
        """Launch a kernel that adds 1 to a number."""
        self._launch(self._increment, struct.pack("<Q", address), stream)

    def linger(self, stream: int = 0, seconds: float = LONG) -> None:
        """Launch a kernel that takes so long."""
        self._launch(self._linger, struct.pack("<Q", int(seconds * 1e9)), stream)

    def _launch(self, function: int, parameters: bytes, stream: int) -> None:
        assert self.driver.launch_packed(function, stream, 1, 1, 1, 1, 1, 1, 0, parameters) == 0

    def read(self, address: int, size: int, stream: int = 0) -> bytes:
        """Copy from the device."""
        error, view = self.driver.enqueue_read(address, size, stream)
        assert not error
        assert self.driver.wait(self.driver.ticket(stream), ENOUGH)
        return bytes(view)

    def number(self, address: int, stream: int = 0) -> int:
        """Read a number."""
        return int.from_bytes(self.read(address, 4, stream), "little")


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    """One driver for the module: contexts take a while."""
    device = Device()
    yield device
    assert device.driver.fault() is None
    device.driver.close()


def test_device_says_what_it_is(gpu: Device) -> None:
    (info, *_) = gpu.driver.devices()
    assert "NVIDIA" in info.name
    assert info.uuid.startswith("GPU-")
    assert len(info.uuid) == 40
    assert info.total_memory > 1 << 30
    assert info.attributes[1] >= 1024  # threads of a block
    assert info.attributes[75] >= 7  # compute capability, major
    assert info.attributes[83] == 0  # managed memory, which a remote program cannot have
    assert info.arena_base == BASE


@pytest.mark.parametrize("size", [1, 4096, 65536, 65537, MIB, 3 * MIB + 5])
@pytest.mark.parametrize("kind", ["legacy", "blocking", "other"])
def test_bytes_come_back_as_they_were_written(gpu: Device, size: int, kind: str) -> None:
    stream = {"legacy": 0, "blocking": gpu.stream(0), "other": gpu.stream(1)}[kind]
    address = gpu.alloc(size)
    data = os.urandom(size)
    assert gpu.driver.enqueue_write(address, data, stream) == 0
    assert gpu.read(address, size, stream) == data
    gpu.driver.cuMemFree(address)


def test_many_reads_at_once_keep_their_data(gpu: Device) -> None:
    stream = gpu.stream()
    address = gpu.alloc(100 * 4096)
    data = os.urandom(100 * 4096)
    assert gpu.driver.enqueue_write(address, data, stream) == 0
    gpu.linger(stream)
    views = []
    for index in range(100):
        error, view = gpu.driver.enqueue_read(address + 4096 * index, 4096, stream)
        assert not error
        views.append(view)
    assert gpu.driver.wait(gpu.driver.ticket(stream), ENOUGH)
    assert b"".join(map(bytes, views)) == data


def test_large_reads_that_nobody_has_taken_yet_hold_their_memory(gpu: Device) -> None:
    address = gpu.alloc(100 * MIB)
    views = []
    for index in range(100):
        assert gpu.driver.cuMemsetD8Async(address + index * MIB, index, MIB, 0) == (0,)
        views.append(gpu.driver.enqueue_read(address + index * MIB, MIB, 0)[1])
    assert gpu.driver.wait(gpu.driver.ticket(0), ENOUGH)
    assert [(view[0], view[-1]) for view in views] == [(i, i) for i in range(100)]
    gpu.driver.cuMemFree(address)


def test_copy_in_the_legacy_stream_is_ahead_of_all_that_follows(gpu: Device) -> None:
    """A program uses the data anywhere once a synchronous copy has returned."""
    address, stream = gpu.alloc(4), gpu.stream()
    gpu.linger(0)
    assert gpu.driver.enqueue_write(address, (41).to_bytes(4, "little"), 0) == 0
    gpu.increment(address, stream)
    assert gpu.number(address, stream) == 42


def test_streams_that_do_not_wait_for_each_other_do_not(gpu: Device) -> None:
    busy, free = gpu.stream(), gpu.stream()
    address = gpu.alloc(4)
    gpu.linger(busy)
    gpu.increment(address, free)
    later, sooner = gpu.driver.ticket(busy), gpu.driver.ticket(free)
    assert gpu.driver.wait_any([later, sooner], ENOUGH)
    assert gpu.driver.done(sooner)
    assert not gpu.driver.done(later)
    assert not gpu.driver.wait(later, 0.001)
    assert gpu.driver.wait(later, ENOUGH)


def test_wait_for_everything_does_not_include_what_comes_later(gpu: Device) -> None:
    """Or a busy program would never end waiting."""
    first, second = gpu.stream(), gpu.stream()
    address = gpu.alloc(4)
    gpu.increment(address, first)
    everything = gpu.driver.ticket()
    gpu.linger(second)
    behind = gpu.driver.ticket(second)
    assert gpu.driver.wait(everything, ENOUGH)
    assert not gpu.driver.done(behind)
    assert gpu.driver.wait(behind, ENOUGH)


def test_wait_for_a_blocking_stream_does_not_include_later_work_of_the_legacy_one(
    gpu: Device,
) -> None:
    stream, address = gpu.stream(0), gpu.alloc(4)
    gpu.increment(address, stream)
    gpu.linger(0)
    ours, legacy = gpu.driver.ticket(stream), gpu.driver.ticket(0)
    assert gpu.driver.wait(ours, ENOUGH)
    assert not gpu.driver.done(legacy)
    assert gpu.driver.wait(legacy, ENOUGH)


def test_event_that_is_recorded_again_leaves_earlier_waits_alone(gpu: Device) -> None:
    """A wait is for the record that was the latest when it began."""
    stream = gpu.stream()
    event = gpu.made(gpu.driver.cuEventCreate(0))
    assert gpu.driver.event_ticket(event) == 0
    assert gpu.driver.cuEventRecord(event, stream) == (0,)
    earlier = gpu.driver.event_ticket(event)
    gpu.linger(stream)
    assert gpu.driver.cuEventRecord(event, stream) == (0,)
    later = gpu.driver.event_ticket(event)
    assert gpu.driver.wait(earlier, ENOUGH)
    assert not gpu.driver.done(later)
    assert gpu.driver.wait(later, ENOUGH)


def test_stream_waits_for_another_ones_event(gpu: Device) -> None:
    first, second = gpu.stream(), gpu.stream()
    address = gpu.alloc(4)
    event = gpu.made(gpu.driver.cuEventCreate(2))
    gpu.linger(first)
    assert gpu.driver.enqueue_write(address, (1).to_bytes(4, "little"), first) == 0
    assert gpu.driver.cuEventRecord(event, first) == (0,)
    assert gpu.driver.cuStreamWaitEvent(second, event) == (0,)
    gpu.increment(address, second)
    assert gpu.number(address, second) == 2


def test_events_measure_the_time_between_them(gpu: Device) -> None:
    stream = gpu.stream()
    start, end = (gpu.made(gpu.driver.cuEventCreate(0)) for _ in range(2))
    assert gpu.driver.cuEventRecord(start, stream) == (0,)
    gpu.linger(stream, 0.05)
    assert gpu.driver.cuEventRecord(end, stream) == (0,)
    assert gpu.driver.cuEventElapsedTime(start, end)[0] == 600  # not ready
    assert gpu.driver.wait(gpu.driver.event_ticket(end), ENOUGH)
    error, milliseconds = gpu.driver.cuEventElapsedTime(start, end)
    assert not error
    assert milliseconds >= 50


def test_descriptor_tells_the_end_of_what_is_watched(gpu: Device) -> None:
    stream = gpu.stream()
    gpu.driver.drain()
    gpu.linger(stream)
    ticket = gpu.driver.ticket(stream)
    gpu.driver.watch(ticket)
    descriptor = gpu.driver.fileno()
    assert not gpu.driver.done(ticket)
    assert select.select([descriptor], [], [], ENOUGH)[0]
    assert gpu.driver.done(ticket)
    gpu.driver.drain()
    assert not select.select([descriptor], [], [], 0)[0]


def test_waiting_lets_other_threads_run(gpu: Device) -> None:
    stream = gpu.stream()
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1

    gpu.linger(stream)
    counter = threading.Thread(target=count)
    counter.start()
    try:
        assert gpu.driver.wait(gpu.driver.ticket(stream), ENOUGH)
    finally:
        stop.set()
        counter.join()
    assert turns > 1000


def test_memory_that_is_used_again_is_used_behind_the_work_before(gpu: Device) -> None:
    """A kernel that still runs on freed memory does not meet its next owner."""
    first, second = gpu.stream(), gpu.stream()
    old = gpu.alloc(4096)
    gpu.linger(first)
    assert gpu.driver.cuMemsetD8Async(old, 0xAA, 4096, first) == (0,)
    assert gpu.driver.cuMemFree(old) == (0,)
    new = gpu.made(gpu.driver.cuMemAlloc(4096))
    assert new == old
    assert gpu.driver.cuMemsetD8Async(new, 0x55, 4096, second) == (0,)
    assert gpu.driver.wait(gpu.driver.ticket(), ENOUGH)
    assert gpu.read(new, 4096) == b"\x55" * 4096


def test_stream_gets_its_own_memory_back_and_another_one_waits_for_it_alone(gpu: Device) -> None:
    first, second, third = (gpu.stream() for _ in range(3))
    driver, word = gpu.driver, gpu.alloc(4)
    old = gpu.made(driver.cuMemAllocAsync(4096, first))
    gpu.linger(first)
    assert driver.cuMemsetD8Async(old, 0xAA, 4096, first) == (0,)
    assert driver.cuMemFreeAsync(old, first) == (0,)
    mine = gpu.made(driver.cuMemAllocAsync(4096, first))
    assert mine == old
    assert driver.cuMemsetD8Async(mine, 0xBB, 4096, first) == (0,)
    assert driver.cuMemFreeAsync(mine, first) == (0,)
    theirs = gpu.made(driver.cuMemAllocAsync(4096, second))
    assert theirs == old
    assert driver.cuMemsetD8Async(theirs, 0x55, 4096, second) == (0,)
    gpu.increment(word, third)
    behind, beside = driver.ticket(second), driver.ticket(third)
    assert driver.wait(beside, ENOUGH)
    assert not driver.done(behind)
    assert driver.wait(behind, ENOUGH)
    assert gpu.read(theirs, 4096, second) == b"\x55" * 4096
    for address in (theirs, word):
        assert driver.cuMemFree(address) == (0,)


def test_plain_memory_that_a_stream_freed_waits_for_that_stream(gpu: Device) -> None:
    first, second = gpu.stream(), gpu.stream()
    driver = gpu.driver
    old = gpu.alloc(4096)
    gpu.linger(first)
    assert driver.cuMemsetD8Async(old, 0xAA, 4096, first) == (0,)
    assert driver.cuMemFreeAsync(old, first) == (0,)
    new = gpu.made(driver.cuMemAlloc(4096))
    assert new == old
    assert driver.cuMemsetD8Async(new, 0x55, 4096, second) == (0,)
    assert driver.wait(driver.ticket(), ENOUGH)
    assert gpu.read(new, 4096) == b"\x55" * 4096
    assert driver.cuMemFreeAsync(new, second) == (0,)


def test_large_memory_that_a_stream_freed_stays_while_the_stream_uses_it(gpu: Device) -> None:
    first, driver = gpu.stream(), gpu.driver
    for size in (64 * MIB, 512 * MIB):
        old = gpu.made(driver.cuMemAllocAsync(size, first))
        gpu.linger(first)
        assert driver.cuMemsetD8Async(old, 0xAA, size, first) == (0,)
        assert driver.cuMemFreeAsync(old, first) == (0,)
        driver.drain()
        assert driver.wait(driver.ticket(first), ENOUGH)
        assert driver.fault() is None
        driver.drain()
    assert driver.cuMemFreeAsync(old, first) == (1,)
    assert driver.cuMemAllocAsync(0, first) == (1, 0)
    assert driver.cuMemAllocAsync(64, 0x77)[0] == 400


def test_memory_runs_out_with_an_error_and_freeing_makes_room(gpu: Device) -> None:
    _, free, total = gpu.driver.cuMemGetInfo()
    assert 0 < free <= total
    assert gpu.driver.cuMemAlloc(total)[0] == 2
    size = free // 2
    address = gpu.made(gpu.driver.cuMemAlloc(size))
    assert gpu.driver.cuMemGetInfo()[1] <= free - size
    assert gpu.driver.cuMemAlloc(size + size // 2)[0] == 2
    assert gpu.driver.cuMemFree(address) == (0,)
    again = gpu.made(gpu.driver.cuMemAlloc(size + size // 2))
    assert gpu.driver.cuMemFree(again) == (0,)


def test_module_tells_its_kernels_with_their_parameters(gpu: Device) -> None:
    module = gpu.made(gpu.driver.cuModuleLoadData(KERNELS.read_bytes() + b"\0"))
    functions = {f.name: f for f in gpu.driver.module_info(module).functions}
    assert {"dense_forward", "adam", "predict"} <= set(functions)
    adam = functions["adam"]
    places = [(p.offset, p.size) for p in adam.parameters]
    assert places[:5] == [(0, 8), (8, 8), (16, 8), (24, 8), (32, 4)]
    assert len(places) == 10
    assert adam.attributes[0] >= 128  # threads of a block
    assert gpu.driver.cuModuleUnload(module) == (0,)


def test_module_tells_its_variables_and_they_are_part_of_the_state(gpu: Device) -> None:
    module = gpu.made(gpu.driver.cuModuleLoadData(ptx.LIST.encode() + b"\0"))
    (variable,) = gpu.driver.module_info(module).globals
    assert (variable.name, variable.size) == ("offset", 8)
    (region,) = [r for r in gpu.driver.regions() if r.kind == "global"]
    assert region.address == variable.address
    data = bytearray(8)
    gpu.driver.read(region, 0, memoryview(data))
    assert int.from_bytes(data, "little") == 5
    assert gpu.driver.cuModuleUnload(module) == (0,)


def test_image_that_is_none_is_refused(gpu: Device) -> None:
    assert gpu.driver.cuModuleLoadData(b"no image\0")[0] in (200, 218)
    assert gpu.driver.load_module_at(b"no image\0", {})[0] in (200, 218)


def test_module_whose_variables_would_move_is_refused(gpu: Device) -> None:
    assert gpu.driver.load_module_at(ptx.LIST.encode() + b"\0", {"offset": 4096})[0] == 2


def test_regions_move_to_the_host_and_back(gpu: Device) -> None:
    size = 64 * MIB + 12345
    address = gpu.made(gpu.driver.cuMemAlloc(size))
    region = next(r for r in gpu.driver.regions() if r.address == address)
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    gpu.driver.write(region, 0, data.data)
    back = np.zeros(size, np.uint8)
    gpu.driver.read(region, 0, back.data)
    assert np.array_equal(back, data)
    gpu.driver.read(region, 1000, back[:10].data)
    assert np.array_equal(back[:10], data[1000:1010])
    assert gpu.driver.cuMemFree(address) == (0,)


def test_context_of_its_own_works_beside_the_primary_one(gpu: Device) -> None:
    driver = gpu.driver
    error, primary = driver.cuDevicePrimaryCtxRetain(0)
    assert not error
    context = gpu.made(driver.cuCtxCreate(None, 0, 0))
    address, stream = gpu.alloc(64), gpu.stream()
    assert driver.cuMemsetD8Async(address, 7, 64, stream) == (0,)
    assert gpu.read(address, 64, stream) == b"\7" * 64
    assert driver.cuCtxDestroy(context) == (0,)
    assert driver.cuCtxSetCurrent(primary) == (0,)
    assert driver.cuMemFree(address) == (1,)  # it went with its context
    assert driver.cuDevicePrimaryCtxRelease(0) == (0,)
