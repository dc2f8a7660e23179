"""Streams and events."""

from __future__ import annotations

import threading

import pytest

from outlast.session.operations import Op
from outlast.shim import driver


def test_a_stream_is_known_by_a_tagged_handle_at_once(link, context):
    result, stream = driver.cuStreamCreate(1)
    assert result == 0
    assert stream % 16 == 0
    assert 0 < stream < 1 << 47
    assert link.calls[-1] == (Op.STREAM_CREATE, (stream, 1, 0), None)
    assert driver.cuStreamGetFlags(stream) == (0, 1)
    assert driver.cuStreamGetCtx(stream) == (0, context)
    assert driver.cuStreamIsCapturing(stream) == (0, 0)


def test_priorities_are_clamped_to_the_range(link, context):
    assert driver.cuCtxGetStreamPriorityRange() == (0, 0, -5)
    for asked, given in ((-99, -5), (-1, -1), (7, 0)):
        _, stream = driver.cuStreamCreateWithPriority(0, asked)
        assert driver.cuStreamGetPriority(stream) == (0, given)
    assert driver.cuStreamCreate(2) == (1, None)


def test_waits_give_the_servers_answer(link, context):
    _, stream = driver.cuStreamCreate(0)
    link.fail_next[Op.STREAM_SYNC] = 700
    assert driver.cuStreamSynchronize(stream) == (700,)
    link.fail_next[Op.STREAM_SYNC] = 123456
    assert driver.cuStreamSynchronize(stream) == (999,)


@pytest.mark.parametrize("handle", [-1, 3, 0x0600_0000_0010])
def test_foreign_stream_and_event_handles_are_invalid(handle, link, context):
    _, event = driver.cuEventCreate(0)
    for call in (
        lambda: driver.cuStreamDestroy(handle),
        lambda: driver.cuStreamSynchronize(handle),
        lambda: driver.cuStreamQuery(handle),
        lambda: driver.cuStreamWaitEvent(handle, event, 0),
        lambda: driver.cuStreamWaitEvent(0, handle, 0),
        lambda: driver.cuEventRecord(event, handle),
        lambda: driver.cuEventRecord(handle, 0),
        lambda: driver.cuEventQuery(handle),
        lambda: driver.cuEventSynchronize(handle),
        lambda: driver.cuEventDestroy(handle),
        lambda: driver.cuEventElapsedTime(event, handle)[:1],
    ):
        assert call() == (400,)
    assert driver.cuMemAlloc(16)[0] == 0


def test_the_default_streams_cannot_be_destroyed(link, context):
    for handle in (0, 1, 2, None):
        assert driver.cuStreamDestroy(handle) == (400,)


def test_a_destroyed_stream_is_gone(link, context):
    _, stream = driver.cuStreamCreate(0)
    assert driver.cuStreamDestroy(stream) == (0,)
    assert driver.cuStreamDestroy(stream) == (400,)
    assert driver.cuStreamSynchronize(stream) == (400,)
    assert driver.cuStreamCreate(0)[1] != stream


def test_both_legacy_handles_are_the_stream_zero(link, context):
    for handle in (0, 1, None):
        driver.cuStreamSynchronize(handle)
    assert [call[1][1] for call in link.of(Op.STREAM_SYNC)] == [0, 0, 0]


def test_the_per_thread_stream_is_one_blocking_stream_of_each_thread(link, context):
    driver.cuStreamSynchronize(2)
    driver.cuStreamSynchronize(2)

    def other():
        driver.cuCtxPushCurrent(context)
        driver.cuStreamSynchronize(2)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    created = [call[1] for call in link.of(Op.STREAM_CREATE)]
    synced = [call[1][1] for call in link.of(Op.STREAM_SYNC)]
    assert [(flags, priority) for _, flags, priority in created] == [(0, 0), (0, 0)]
    assert synced == [created[0][0], created[0][0], created[1][0]]


def test_an_event_never_recorded_is_complete(link, context):
    _, event = driver.cuEventCreate(0)
    before = len(link.calls)
    assert driver.cuEventQuery(event) == (0,)
    assert driver.cuEventSynchronize(event) == (0,)
    assert len(link.calls) == before


def test_a_recorded_event_is_waited_for(link, context):
    _, event = driver.cuEventCreate(0)
    _, stream = driver.cuStreamCreate(0)
    assert driver.cuEventRecord(event, stream) == (0,)
    assert link.calls[-1] == (Op.EVENT_RECORD, (event, stream, 0), None)
    assert driver.cuEventSynchronize(event) == (0,)
    assert link.calls[-1][0] is Op.EVENT_SYNC
    assert driver.cuStreamWaitEvent(stream, event, 0) == (0,)
    assert link.calls[-1] == (Op.STREAM_WAIT_EVENT, (stream, event, 0), None)


def test_event_flags_are_checked(link, context):
    assert driver.cuEventCreate(3)[0] == 0
    assert driver.cuEventCreate(8) == (1, None)
    assert driver.cuEventCreate(6) == (801, None)
    _, event = driver.cuEventCreate(0)
    assert driver.cuEventRecordWithFlags(event, 0, 1) == (1,)
    assert driver.cuStreamWaitEvent(0, event, 1) == (1,)


def test_elapsed_time_needs_two_timed_records(link, context):
    _, start = driver.cuEventCreate(0)
    _, end = driver.cuEventCreate(0)
    _, untimed = driver.cuEventCreate(2)
    driver.cuEventRecord(start, 0)
    assert driver.cuEventElapsedTime(start, end) == (400, None)
    driver.cuEventRecord(end, 0)
    driver.cuEventRecord(untimed, 0)
    assert driver.cuEventElapsedTime(start, end) == (0, 1.0)
    assert driver.cuEventElapsedTime(start, untimed) == (400, None)
    link.fail_next[Op.EVENT_ELAPSED] = 600
    assert driver.cuEventElapsedTime(start, end) == (600, None)


def test_an_event_is_recorded_in_streams_of_its_own_context_only(link, context):
    _, event = driver.cuEventCreate(0)
    driver.cuCtxCreate(None, 0, 1)
    assert driver.cuEventRecord(event, 0) == (400,)
    _, stream = driver.cuStreamCreate(0)
    assert driver.cuStreamWaitEvent(stream, event, 0) == (0,)
