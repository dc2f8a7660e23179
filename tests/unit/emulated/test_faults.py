"""What goes wrong in a kernel, and what every call says from then on."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import numpy as np
import pytest

ILLEGAL_ADDRESS, TIMEOUT, MISALIGNED, LAUNCH_FAILED = 700, 702, 716, 719


def test_a_write_far_out_of_bounds_names_address_kernel_and_line(fresh: Any) -> None:
    target = fresh.put(np.zeros(32, np.float32))
    fresh.cuda.tag = 41
    assert fresh.launch(fresh.kernel("write_far"), 1, 32, target) == 0
    fresh.cuda.tag = 42
    assert fresh.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
    fault = fresh.cuda.fault()
    assert (fault.result, fault.tag) == (ILLEGAL_ADDRESS, 41)
    assert f"{target + (4 << 36):#x}" in fault.reason
    assert "write_far" in fault.reason
    assert "line" in fault.reason


def test_a_fault_stays_until_the_primary_context_is_reset(fresh: Any) -> None:
    cuda = fresh.cuda
    target = fresh.put(np.zeros(32, np.float32))
    stream, event = cuda.cuStreamCreate(0)[1], cuda.cuEventCreate(0)[1]
    kernel, bytes_ = fresh.kernel("write_far"), np.zeros(4, np.uint8)
    fresh.launch(kernel, 1, 1, target)
    cuda.cuStreamSynchronize(0)
    results = {
        cuda.cuMemAlloc(16)[0],
        cuda.cuMemFree(target)[0],
        cuda.cuMemcpyHtoD(target, bytes_, 4)[0],
        cuda.cuMemcpyDtoH(bytes_, target, 4)[0],
        cuda.cuStreamQuery(stream)[0],
        cuda.cuEventRecord(event, stream)[0],
        cuda.cuEventQuery(event)[0],
        cuda.cuCtxSynchronize()[0],
        cuda.cuMemsetD8(target, 0, 4)[0],
        cuda.cuModuleLoadData(b"")[0],
        fresh.launch(kernel, 1, 1, target),
        cuda.enqueue_write(target, b"abcd", 0),
        cuda.enqueue_read(target, 4, 0)[0],
        cuda.allocate_at(0, target + (1 << 20), 4),
    }
    assert results == {ILLEGAL_ADDRESS}
    assert cuda.cuDeviceGetCount() == (0, 1)
    assert cuda.cuDevicePrimaryCtxReset(0)[0] == 0
    assert cuda.fault() is None
    assert cuda.cuMemGetInfo()[1] == cuda.cuMemGetInfo()[2]
    assert cuda.cuMemAlloc(16)[0] == 0


def test_work_behind_a_fault_is_skipped_and_its_tickets_complete(fresh: Any) -> None:
    cuda = fresh.cuda
    target = fresh.put(np.zeros(1, np.int32))
    slow, bad, store = (fresh.kernel(name) for name in ("saxpy", "write_far", "store"))
    big = fresh.put(np.zeros(1 << 20, np.float32))
    fresh.launch(slow, 64, 256, 1.0, big, big, 1 << 20)
    assert fresh.launch(bad, 1, 1, target) == 0
    assert fresh.launch(store, 1, 1, target, 9) == 0
    assert cuda.wait(cuda.ticket(), 10.0)
    region = next(r for r in cuda.regions() if r.address == target)
    assert bytes(cuda.view(region)) == bytes(4)


def test_a_fault_is_in_the_log_once_with_its_reason(
    fresh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    target = fresh.put(np.zeros(1, np.float32))
    fresh.launch(fresh.kernel("write_far"), 1, 1, target)
    for _ in range(2):
        assert fresh.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS
        assert fresh.cuda.fault() is not None
    (record,) = [r for r in caplog.records if getattr(r, "action", "") == "device_fault"]
    assert record.getMessage().startswith("The device has failed: illegal memory access at 0x")
    assert "in kernel write_far, PTX line" in record.getMessage()


def test_a_fault_makes_the_descriptor_readable(fresh: Any) -> None:
    target = fresh.put(np.zeros(1, np.float32))
    fresh.launch(fresh.kernel("write_far"), 1, 1, target)
    assert select.select([fresh.cuda.fileno()], [], [], 10.0)[0]
    fresh.cuda.drain()
    assert not select.select([fresh.cuda.fileno()], [], [], 0)[0]


def test_a_misaligned_access_is_a_fault_of_its_own(fresh: Any) -> None:
    target = fresh.put(np.zeros(8, np.uint8))
    fresh.launch(fresh.kernel("write_misaligned"), 1, 1, target)
    assert fresh.cuda.cuCtxSynchronize()[0] == MISALIGNED


@pytest.mark.parametrize("index", [32, -1, 1 << 20, -(1 << 20)])
def test_shared_memory_is_bounded(fresh: Any, index: int) -> None:
    target = fresh.put(np.zeros(32, np.float32))
    fresh.launch(fresh.kernel("overrun_shared"), 1, 32, target, index)
    assert fresh.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


def test_a_trap_is_a_failed_launch(fresh: Any) -> None:
    fresh.launch(fresh.kernel("stop_here"), 1, 1)
    assert fresh.cuda.cuCtxSynchronize()[0] == LAUNCH_FAILED


def test_freed_memory_faults_but_only_for_later_launches(fresh: Any) -> None:
    target, store = fresh.put(np.zeros(4096, np.uint8)), fresh.kernel("store")
    assert fresh.launch(store, 1, 1, target, 1) == 0
    assert fresh.cuda.cuMemFree(target)[0] == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == 0
    assert fresh.launch(store, 1, 1, target, 1) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


def test_an_address_near_zero_faults(fresh: Any) -> None:
    assert fresh.cuda.launch_packed(fresh.kernel("store"), 0, 1, 1, 1, 1, 1, 1, 0, bytes(12)) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


@pytest.mark.parametrize("kernel", ["spin", "spin_together"])
def test_closing_ends_an_endless_kernel_within_a_second(make_host: Any, kernel: str) -> None:
    host = make_host()
    flag = host.put(np.zeros(1, np.int32))
    host.launch(host.kernel(kernel), 4, 64, flag)
    assert host.cuda.cuStreamQuery(0)[0] == 600
    began = time.monotonic()
    host.cuda.close()
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("kernel", ["spin", "spin_together"])
def test_the_watchdog_ends_an_endless_kernel(make_host: Any, kernel: str) -> None:
    host = make_host(watchdog_s=0.1)
    flag = host.put(np.zeros(1, np.int32))
    host.launch(host.kernel(kernel), 1, 32, flag)
    assert host.cuda.cuCtxSynchronize()[0] == TIMEOUT
    assert kernel in host.cuda.fault().reason


def test_closing_frees_the_address_range_and_the_descriptor(make_driver: Any) -> None:
    first = make_driver()
    descriptor, base = first.fileno(), first.devices()[0].arena_base
    first.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    again = make_driver(base=base)
    assert again.devices()[0].arena_base == base


def test_an_error_that_comes_between_launches_is_not_lost(fresh: Any) -> None:
    target, store = fresh.put(np.zeros(1, np.int32)), fresh.kernel("store")
    assert fresh.cuda.cuCtxSynchronize()[0] == 0
    fresh.cuda.engine.fail(TIMEOUT)
    fresh.cuda.tag = 5
    fresh.launch(store, 1, 1, target, 1)
    assert fresh.cuda.cuCtxSynchronize()[0] == TIMEOUT
    assert fresh.cuda.fault().tag == 5
    assert "in kernel" not in fresh.cuda.fault().reason


def test_a_closed_device_says_so(make_host: Any) -> None:
    host = make_host()
    kernel, target = host.kernel("store"), host.put(np.zeros(1, np.int32))
    host.cuda.close()
    host.cuda.close()
    assert host.cuda.cuMemAlloc(4)[0] == 4
    assert host.launch(kernel, 1, 1, target, 1) == 4
    assert host.cuda.enqueue_write(target, b"abcd", 0) == 4
    host.cuda.watch(1 << 40)
    host.cuda.drain()
    assert host.cuda.devices() == []


def test_closing_wakes_a_thread_that_waits(make_host: Any) -> None:
    host = make_host()
    flag = host.put(np.zeros(1, np.int32))
    host.launch(host.kernel("spin"), 1, 1, flag)
    results = []

    def synchronize() -> None:
        host.cuda.cuCtxSetCurrent(host.context)
        results.append(host.cuda.cuCtxSynchronize()[0])

    thread = threading.Thread(target=synchronize)
    thread.start()
    host.cuda.close()
    thread.join(10.0)
    assert results == [4]
