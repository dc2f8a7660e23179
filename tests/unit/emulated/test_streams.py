"""Streams, events, tickets: what a call returns before, while and after work runs."""

from __future__ import annotations

import ctypes
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from outlast.server.drivers.emulated.engine import RING_SIZE

NOT_READY, INVALID_VALUE, INVALID_HANDLE = 600, 1, 400
NON_BLOCKING, DISABLE_TIMING = 1, 2


@pytest.fixture
def busy(make_host: Any) -> Iterator[Any]:
    """A device on which a kernel spins until its flag is set."""
    host = make_host()
    flag = host.put(np.zeros(1, np.int32))
    spin = host.kernel("spin")

    def release() -> None:
        # Not by a view of its region: the allocation may be gone by now.
        ctypes.c_uint32.from_address(flag).value = 1

    host.release = release
    host.block = lambda stream=0: host.launch(spin, 1, 1, flag, stream=stream)
    yield host
    release()
    host.cuda.close()


def stream_of(host: Any, flags: int = 0) -> int:
    result, stream = host.cuda.cuStreamCreate(flags)
    assert result == 0
    return int(stream)


def test_a_launch_returns_before_its_kernel_has_run(busy: Any) -> None:
    stream = stream_of(busy)
    assert busy.block(stream) == 0
    assert busy.cuda.cuStreamQuery(stream)[0] == NOT_READY
    busy.release()
    assert busy.cuda.cuStreamSynchronize(stream)[0] == 0
    assert busy.cuda.cuStreamQuery(stream)[0] == 0


def test_the_legacy_stream_includes_blocking_streams_only(busy: Any) -> None:
    blocking, other = stream_of(busy), stream_of(busy, NON_BLOCKING)
    busy.block(other)
    assert busy.cuda.cuStreamQuery(0)[0] == 0
    assert busy.cuda.done(busy.cuda.ticket(0))
    busy.launch(busy.kernel("stop_here"), 1, 1, stream=blocking)
    assert busy.cuda.cuStreamQuery(0)[0] == NOT_READY
    assert busy.cuda.ticket(0) == busy.cuda.ticket(1) == busy.cuda.ticket(blocking)
    assert busy.cuda.ticket(other) < busy.cuda.ticket()


def test_a_stream_without_work_is_ready_while_another_runs(busy: Any) -> None:
    busy.block(stream_of(busy))
    assert busy.cuda.cuStreamQuery(stream_of(busy))[0] == 0


def test_an_event_that_was_never_recorded_is_complete(busy: Any) -> None:
    event = busy.cuda.cuEventCreate(0)[1]
    busy.block()
    assert busy.cuda.cuEventQuery(event)[0] == 0
    assert busy.cuda.cuEventSynchronize(event)[0] == 0
    assert busy.cuda.event_ticket(event) == 0


def test_an_event_completes_with_the_work_before_its_latest_record(busy: Any) -> None:
    cuda, event = busy.cuda, busy.cuda.cuEventCreate(0)[1]
    cuda.cuEventRecord(event, 0)
    assert cuda.cuEventSynchronize(event)[0] == 0
    busy.block()
    assert cuda.cuEventQuery(event)[0] == 0
    cuda.cuEventRecord(event, 0)
    assert cuda.cuEventQuery(event)[0] == NOT_READY
    busy.release()
    assert cuda.cuEventSynchronize(event)[0] == 0


def test_waiting_for_an_event_makes_a_stream_as_late_as_the_event(busy: Any) -> None:
    cuda, event, waiting = busy.cuda, busy.cuda.cuEventCreate(0)[1], stream_of(busy)
    busy.block()
    cuda.cuEventRecord(event, 0)
    assert cuda.cuStreamWaitEvent(waiting, event, 0)[0] == 0
    assert cuda.cuStreamQuery(waiting)[0] == NOT_READY
    busy.release()
    assert cuda.cuStreamSynchronize(waiting)[0] == 0


def test_elapsed_time_needs_two_timed_finished_records(busy: Any) -> None:
    cuda = busy.cuda
    start, end = cuda.cuEventCreate(0)[1], cuda.cuEventCreate(0)[1]
    untimed = cuda.cuEventCreate(DISABLE_TIMING)[1]
    assert cuda.cuEventElapsedTime(start, end)[0] == INVALID_HANDLE
    for event in (start, untimed):
        cuda.cuEventRecord(event, 0)
    busy.block()
    cuda.cuEventRecord(end, 0)
    assert cuda.cuEventElapsedTime(start, end)[0] == NOT_READY
    assert cuda.cuEventElapsedTime(start, untimed)[0] == INVALID_HANDLE
    busy.release()
    cuda.cuEventSynchronize(end)
    result, milliseconds = cuda.cuEventElapsedTime(start, end)
    assert result == 0
    assert 0 < milliseconds < 10_000


def test_waiting_for_a_ticket_keeps_other_threads_running(busy: Any) -> None:
    busy.block()
    counted = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    began = time.monotonic()
    assert not busy.cuda.wait(busy.cuda.ticket(), 0.2)
    assert 0.15 < time.monotonic() - began < 5
    stop.set()
    thread.join()
    assert len(counted) > 100


def test_every_waiting_thread_wakes_at_its_ticket(busy: Any) -> None:
    busy.block()
    tickets = []
    for _ in range(20):
        busy.cuda.cuEventRecord(busy.cuda.cuEventCreate(0)[1], 0)
        tickets.append(busy.cuda.ticket())
    woken: list[bool] = []
    threads = [
        threading.Thread(target=lambda t=t: woken.append(busy.cuda.wait(t, 20.0))) for t in tickets
    ]
    for thread in threads:
        thread.start()
    busy.release()
    for thread in threads:
        thread.join(20.0)
    assert woken == [True] * len(tickets)


def test_the_descriptor_announces_watched_tickets_until_all_are_done(busy: Any) -> None:
    cuda = busy.cuda
    early = cuda.ticket()
    busy.block()
    late = cuda.ticket()
    cuda.watch(late)
    cuda.watch(early)
    assert select.select([cuda.fileno()], [], [], 10.0)[0]
    cuda.drain()
    assert not cuda.done(late)
    assert not select.select([cuda.fileno()], [], [], 0)[0]
    busy.release()
    assert select.select([cuda.fileno()], [], [], 10.0)[0]
    cuda.drain()
    assert cuda.done(late)
    assert not select.select([cuda.fileno()], [], [], 0)[0]


def test_a_full_queue_blocks_the_caller_and_loses_nothing(busy: Any) -> None:
    digits = busy.put(np.zeros(1, np.uint64))
    kernel, store = busy.kernel("append_digit"), busy.kernel("store")
    other = busy.put(np.zeros(1, np.int32))
    busy.block()
    issued = threading.Event()

    def fill() -> None:
        busy.cuda.cuCtxSetCurrent(busy.context)
        for number in range(3000):
            packed = other.to_bytes(8, "little") + number.to_bytes(4, "little") + bytes(4084)
            assert busy.cuda.launch_packed(store, 0, 1, 1, 1, 1, 1, 1, 0, packed) == 0
        for digit in range(1, 10):
            packed = digits.to_bytes(8, "little") + digit.to_bytes(4, "little")
            assert busy.cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, packed) == 0
        issued.set()

    thread = threading.Thread(target=fill)
    thread.start()
    assert not issued.wait(0.3)
    busy.release()
    assert issued.wait(20.0)
    thread.join()
    assert busy.get(digits, np.zeros(1, np.uint64))[0] == 123456789
    assert busy.get(other, np.zeros(1, np.int32))[0] == 2999


def test_written_bytes_may_be_dropped_by_the_caller(busy: Any) -> None:
    size = 1 << 20
    target = busy.cuda.cuMemAlloc(size)[1]
    busy.block()
    assert busy.cuda.enqueue_write(target, bytes([7]) * size, 0) == 0
    result, buffer = busy.cuda.enqueue_read(target, size, 0)
    assert result == 0
    busy.release()
    assert busy.cuda.wait(busy.cuda.ticket(), 10.0)
    assert bytes(buffer) == bytes([7]) * size


def test_handles_are_reused_and_any_integer_like_value_is_accepted(host: Any) -> None:
    cuda = host.cuda
    stream = stream_of(host)
    assert cuda.cuStreamSynchronize(ctypes.c_uint64(stream).value)[0] == 0
    assert cuda.cuStreamSynchronize(np.uint64(stream))[0] == 0
    assert cuda.cuStreamDestroy(stream)[0] == 0
    assert cuda.cuStreamSynchronize(stream)[0] == INVALID_HANDLE
    assert cuda.cuStreamDestroy(stream)[0] == INVALID_HANDLE
    assert stream_of(host) == stream


def test_streams_answer_for_their_flags_and_priority(host: Any) -> None:
    cuda = host.cuda
    result, stream = cuda.cuStreamCreateWithPriority(NON_BLOCKING, -2)
    assert result == 0
    assert cuda.cuStreamGetFlags(stream) == (0, NON_BLOCKING)
    assert cuda.cuStreamGetPriority(stream) == (0, -2)
    assert cuda.cuStreamCreate(64)[0] == INVALID_VALUE
    assert cuda.cuEventCreate(64)[0] == INVALID_VALUE
    assert cuda.cuStreamSynchronize("x")[0] == INVALID_VALUE


def test_destroying_what_is_in_use_waits_for_nothing(busy: Any) -> None:
    cuda = busy.cuda
    _, primary = cuda.cuCtxGetCurrent()
    _, context = cuda.cuCtxCreate(None, 0, 0)
    busy.launch(busy.kernel("stop_here"), 1, 1)
    cuda.cuCtxSetCurrent(primary)
    busy.block()
    assert cuda.cuCtxDestroy(context) == (0,)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (cuda.cuDevicePrimaryCtxReset(0), ended.set()))
    thread.start()
    in_time = ended.wait(10)
    # The memory that the kernel looks at went with its context, and stays until it ends.
    busy.release()
    thread.join(10)
    assert in_time
    assert cuda.wait(cuda.ticket(), 10)
    assert cuda.fault() is None


def test_many_small_copies_behind_a_kernel_wait_for_no_room(busy: Any) -> None:
    """Twice as many bytes as the device's queue has room for."""
    target, data = busy.put(np.zeros(4096, np.uint8)), bytes(range(256)) * 16
    busy.block()
    ended = threading.Event()

    def copy() -> None:
        _, primary = busy.cuda.cuDevicePrimaryCtxRetain(0)
        busy.cuda.cuCtxSetCurrent(primary)
        for _ in range(2 * RING_SIZE // len(data)):
            assert busy.cuda.enqueue_write(target, data, 0) == 0
        ended.set()

    thread = threading.Thread(target=copy)
    thread.start()
    in_time = ended.wait(10)
    busy.release()
    thread.join(10)
    assert in_time
    assert bytes(busy.get(target, np.zeros(4096, np.uint8))) == data
