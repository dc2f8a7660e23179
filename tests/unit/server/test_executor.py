"""The executor on the emulated device: what a batch may hold, what replay imposes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fatbins import sample, wrapper

from outlast.errors import ProtocolError, ReplayDiverged
from outlast.server.drivers import get_driver
from outlast.server.drivers.base import Fault
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.ids import primary_context
from outlast.session.operations import Op
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, ReplyKind
from outlast.session.wire import Reply

STREAM = HANDLE_FIRST
RETAIN = wire.pack_record(Op.PRIMARY_RETAIN, 0)
BIND = wire.pack_record(Op.BIND, 1, primary_context(0))
ALLOC = wire.pack_record(Op.MEM_ALLOC, 4096)
MEM_INFO = wire.pack_record(Op.MEM_INFO, 2)
OUT_OF_MEMORY, INVALID_VALUE, INVALID_IMAGE = 2, 1, 200


@pytest.fixture
def executor() -> Iterator[Executor]:
    driver = get_driver("emulated", memory=64 << 20)
    executor = Executor(driver, HostSession())
    executor.host.peer = b"client"
    executor.run(1, 1, 0, RETAIN + BIND, [])
    yield executor
    driver.close()


def replies(executor: Executor) -> list[Reply]:
    executor.settle()
    frames = executor.host.take_replies(idle=False)
    return list(wire.iter_replies(wire.parse_message(frames).frames[0])) if frames else []


def outcome(seq: int, result: int, value: int = 0) -> bytes:
    return wire.pack_record(Op.OUTCOME, seq, result, value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_that_holds_other_than_it_claims_is_refused(executor, count):
    with pytest.raises(ProtocolError, match=f"a batch of {count} calls holds"):
        executor.run(2, count, 0, BIND + ALLOC + ALLOC, [])
    assert executor.host.applied == 1 + min(count, 2)


def test_repeated_calls_are_skipped(executor):
    executor.run(2, 2, 0, BIND + ALLOC + ALLOC, [])
    executor.run(2, 3, 2, BIND + ALLOC + ALLOC + ALLOC, [])
    assert executor.host.applied == 4
    assert len(executor.allocations) == 3


def test_an_allocation_that_failed_stays_failed_in_a_replay(executor):
    executor.run(2, 2, 0, BIND + outcome(2, OUT_OF_MEMORY) + ALLOC + ALLOC, [])
    assert len(executor.allocations) == 1
    assert [(r.number, r.result) for r in replies(executor)] == [(3, 0)]


def test_a_replayed_allocation_gets_its_recorded_address_and_no_reply(executor):
    address = 0x1000_0080_0000
    executor.run(2, 1, 0, BIND + outcome(2, 0, address) + ALLOC, [])
    assert list(executor.allocations) == [address]
    assert replies(executor) == []


def test_an_address_that_cannot_be_had_again_ends_the_replay(executor):
    with pytest.raises(ReplayDiverged, match="cannot be had again"):
        executor.run(2, 1, 0, BIND + outcome(2, 0, 0x7FFF_0000_0000) + ALLOC, [])
    assert executor.host.applied == 1


def test_what_uses_a_stream_whose_creation_failed_before_is_skipped_in_silence(executor):
    create = wire.pack_record(Op.STREAM_CREATE, STREAM, 1, 0)
    fill = wire.pack_record(Op.MEMSET, 0x1000, STREAM, 1, 0, 4, 0)
    executor.run(2, 2, 0, BIND + outcome(2, OUT_OF_MEMORY) + create + fill, [])
    assert replies(executor) == []
    assert STREAM in executor.handles.dead


def test_a_one_way_call_that_fails_is_reported_once_with_its_context(executor):
    fill = wire.pack_record(Op.MEMSET, 0x1000, 0, 1, 0, 4, 0)
    executor.run(2, 1, 0, BIND + fill, [])
    (late,) = replies(executor)
    assert late == Reply(ReplyKind.DEFERRED, 2, INVALID_VALUE, primary_context(0), b"")
    assert replies(executor) == []


def test_a_handle_in_use_is_refused(executor):
    create = wire.pack_record(Op.STREAM_CREATE, STREAM, 1, 0)
    executor.run(2, 1, 0, BIND + create, [])
    with pytest.raises(ProtocolError, match="already in use"):
        executor.run(3, 1, 0, BIND + create, [])


def test_a_context_takes_what_it_owns_with_it(executor):
    context = STREAM + HANDLE_STEP
    create = wire.pack_record(Op.CTX_CREATE, context, 0, 0)
    inside = wire.pack_record(Op.BIND, 1, context)
    destroy = wire.pack_record(Op.CTX_DESTROY, context)
    executor.run(2, 1, 0, BIND + create, [])
    executor.run(3, 2, 0, inside + ALLOC + wire.pack_record(Op.STREAM_CREATE, STREAM, 1, 0), [])
    executor.run(5, 1, 0, BIND + destroy, [])
    assert executor.allocations == {}
    assert STREAM not in executor.handles
    assert context not in executor.handles


def test_an_object_that_was_never_made_is_skipped_until_it_is_destroyed(executor):
    create = wire.pack_record(Op.STREAM_CREATE, STREAM, 0xFFFF, 0)
    wait = wire.pack_record(Op.STREAM_WAIT_EVENT, STREAM, STREAM, 0)
    destroy = wire.pack_record(Op.STREAM_DESTROY, STREAM)
    executor.run(2, 3, 0, BIND + create + wait + destroy, [])
    assert [(late.number, late.result) for late in replies(executor)] == [(2, INVALID_VALUE)]
    assert STREAM not in executor.handles.dead
    assert executor.handles.next_id(HANDLE_STEP) == STREAM + HANDLE_STEP
    executor.run(5, 1, 0, BIND + destroy, [])
    assert [late.result for late in replies(executor)] == [400]


def test_work_that_ends_while_waits_are_looked_at_is_answered_in_order(executor, monkeypatch):
    executor.settle()
    looked = []

    def done(ticket: int) -> bool:
        looked.append(ticket)
        return len(looked) > 1  # everything ends right after the first look

    monkeypatch.setattr(executor.driver, "done", done)
    for number in (1, 2, 3):
        executor.wait_for(executor.driver.ticket(), ReplyKind.ANSWER, number)
    answers = [reply.number for reply in replies(executor) + replies(executor)]
    assert answers == [1, 2, 3]


def test_a_fault_between_two_looks_is_no_success(executor, monkeypatch):
    fault = Fault(700, 1, "an access beyond its allocation")

    def done(ticket: int) -> bool:
        monkeypatch.setattr(executor.driver, "fault", lambda: fault)
        return True

    monkeypatch.setattr(executor.driver, "done", done)
    executor.wait_for(executor.driver.ticket(), ReplyKind.ANSWER, 1)
    assert [(r.kind, r.result) for r in replies(executor)] == [
        (ReplyKind.DEFERRED, 700),
        (ReplyKind.ANSWER, 700),
    ]


@pytest.mark.parametrize(
    ("call", "failed", "calls", "record", "kind"),
    [
        ("cuMemAlloc", (700, None), 1, ALLOC, ReplyKind.OUTCOME),
        ("cuMemGetInfo", (700, None, None), 0, MEM_INFO, ReplyKind.ANSWER),
    ],
)
def test_what_poisoned_a_context_is_reported_before_any_answer_that_shows_it(
    executor, monkeypatch, call, failed, calls, record, kind
):
    def fail(*_: object) -> tuple[object, ...]:
        monkeypatch.setattr(executor.driver, "fault", lambda: Fault(700, 1, "an access beyond"))
        return failed

    monkeypatch.setattr(executor.driver, call, fail)
    executor.run(2, calls, 0, BIND + record, [])
    assert [(r.kind, r.number, r.result) for r in replies(executor)] == [
        (ReplyKind.DEFERRED, 1, 700),
        (kind, 2, 700),
    ]


def test_a_time_between_events_that_shows_a_fault_comes_behind_its_cause(executor, monkeypatch):
    def elapsed() -> tuple[int, bytes]:
        monkeypatch.setattr(executor.driver, "fault", lambda: Fault(700, 1, "an access beyond"))
        return 700, b""

    executor.poll(0, 5, elapsed)
    assert [(r.kind, r.number) for r in replies(executor)] == [
        (ReplyKind.DEFERRED, 1),
        (ReplyKind.ANSWER, 5),
    ]


def test_a_poisoned_context_without_a_fault_is_reported_with_the_call_that_showed_it(
    executor, monkeypatch
):
    monkeypatch.setattr(executor.driver, "cuMemAlloc", lambda size: (719, None))
    executor.run(2, 2, 0, BIND + ALLOC + ALLOC, [])
    assert [(r.kind, r.number, r.result) for r in replies(executor)] == [
        (ReplyKind.DEFERRED, 2, 719),
        (ReplyKind.OUTCOME, 2, 719),
        (ReplyKind.OUTCOME, 3, 719),
    ]


def test_a_short_wait_for_the_device_ends_when_there_are_other_calls(executor, monkeypatch):
    monkeypatch.setattr(executor.driver, "done", lambda ticket: False)
    executor.wait_for(executor.driver.ticket(), ReplyKind.OUTCOME, 7)
    monkeypatch.setattr(executor.driver, "wait_any", lambda tickets, timeout: False)
    looks = iter([False, False, True])
    executor.linger(3600.0, lambda: next(looks))
    assert list(looks) == []
    assert len(executor.waits) == 1


def test_what_is_done_is_answered_at_once_unless_data_is_to_come_before(executor):
    executor.wait_for(0, ReplyKind.ANSWER, 5)
    assert executor.waits == []
    executor.wait_for(0, ReplyKind.OUTCOME, 1, memoryview(b"data"))
    executor.wait_for(0, ReplyKind.ANSWER, 6)
    assert len(executor.waits) == 2
    assert [r.number for r in replies(executor)] == [5, 1, 6]


def test_a_fault_is_told_before_what_is_answered_at_once(executor, monkeypatch):
    monkeypatch.setattr(executor.driver, "fault", lambda: Fault(719, 1, "a test's"))
    executor.wait_for(0, ReplyKind.ANSWER, 5)
    told = [(r.kind, r.number, r.result) for r in replies(executor)]
    assert told == [(ReplyKind.DEFERRED, 1, 719), (ReplyKind.ANSWER, 5, 719)]


def test_a_short_wait_answers_what_is_done_by_then(executor, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(executor.driver, "done", lambda ticket: False)
        executor.wait_for(executor.driver.ticket(), ReplyKind.OUTCOME, 7)
    executor.linger(3600.0, lambda: False)
    assert executor.waits == []
    assert [reply.number for reply in replies(executor)][-1] == 7


def test_each_wait_gets_a_short_wait_once(executor, monkeypatch):
    monkeypatch.setattr(executor.driver, "done", lambda ticket: False)
    executor.wait_for(executor.driver.ticket(), ReplyKind.ANSWER, 7)
    executor.watch()
    monkeypatch.setattr(executor.driver, "wait_any", lambda *_: pytest.fail("waits again"))
    executor.linger(3600.0, lambda: False)
    assert len(executor.waits) == 1


def test_a_client_that_comes_back_asks_its_queries_again_and_copies_stay_owed(executor):
    executor.wait_for(executor.driver.ticket(), ReplyKind.ANSWER, 7)
    executor.wait_for(executor.driver.ticket(), ReplyKind.OUTCOME, 1, memoryview(b"data"))
    executor.forget_queries()
    assert [wait.kind for wait in executor.waits] == [ReplyKind.OUTCOME]
    assert executor.coming == 4


CREATE = wire.pack_record(Op.STREAM_CREATE, STREAM, 1, 0)
ALLOC_ASYNC = wire.pack_record(Op.MEM_ALLOC_ASYNC, 4096, STREAM)


def free_async(address: int, stream: int = STREAM) -> bytes:
    return wire.pack_record(Op.MEM_FREE_ASYNC, address, stream)


def test_memory_is_allocated_and_freed_in_the_order_of_a_stream(executor):
    executor.run(2, 2, 0, BIND + CREATE + ALLOC_ASYNC, [])
    (reply,) = replies(executor)
    assert reply.result == 0
    assert list(executor.allocations) == [reply.value]
    executor.run(4, 2, 0, BIND + free_async(reply.value) + free_async(reply.value), [])
    assert executor.allocations == {}
    assert [(late.number, late.result) for late in replies(executor)] == [(5, INVALID_VALUE)]
    whats = [entry["what"] for entry in executor.journal]
    assert whats[-2:] == ["allocated", "freed"]


def test_memory_is_freed_in_a_streams_order_or_not_however_it_was_allocated(executor):
    free = wire.pack_record
    executor.run(2, 3, 0, BIND + CREATE + ALLOC_ASYNC + ALLOC, [])
    ordered, plain = executor.allocations
    executor.run(5, 2, 0, BIND + free(Op.MEM_FREE, ordered) + free_async(plain), [])
    assert executor.allocations == {}
    assert [reply.result for reply in replies(executor)] == [0, 0]


def test_an_allocation_in_a_stream_that_there_is_not_is_refused(executor):
    executor.run(2, 2, 0, BIND + ALLOC_ASYNC + free_async(0x1000), [])
    assert [reply.result for reply in replies(executor)] == [400, 400]


def test_a_replayed_allocation_in_a_stream_gets_its_recorded_address_and_no_reply(executor):
    address = 0x1000_0080_0000
    executor.run(2, 2, 0, BIND + CREATE + outcome(3, 0, address) + ALLOC_ASYNC, [])
    assert list(executor.allocations) == [address]
    assert replies(executor) == []
    far = outcome(4, 0, 0x7FFF_0000_0000)
    with pytest.raises(ReplayDiverged, match="cannot be had again"):
        executor.run(4, 1, 0, BIND + far + ALLOC_ASYNC, [])


def test_memory_in_a_streams_order_goes_with_the_streams_context(executor):
    context = STREAM + HANDLE_STEP
    create = wire.pack_record(Op.CTX_CREATE, context, 0, 0)
    inside = wire.pack_record(Op.BIND, 1, context)
    executor.run(2, 3, 0, BIND + create + inside + CREATE + BIND + ALLOC_ASYNC, [])
    (allocation,) = executor.allocations.values()
    assert allocation.context == context
    executor.run(5, 1, 0, BIND + wire.pack_record(Op.CTX_DESTROY, context), [])
    assert executor.allocations == {}


def test_whoever_counts_on_the_session_is_told_before_anything_changes_it(executor):
    told: list[int] = []
    executor.rest.at_end = lambda: told.append(len(executor.allocations))
    executor.run(2, 1, 0, BIND + ALLOC, [])
    executor.run(3, 0, 0, BIND + MEM_INFO, [])  # asks
    executor.run(2, 1, 1, BIND + ALLOC, [])  # has been done
    assert told == [0]
    executor.run(3, 2, 0, BIND + MEM_INFO + ALLOC + ALLOC, [])
    assert told == [0, 1]
    executor.driver.fault = lambda: Fault(700, 2, "stray")
    executor.settle()
    assert told == [0, 1, 3]
    assert executor.poisoned


@pytest.mark.parametrize("image", [wrapper(0x1000), sample("size")[:-1], b"\x7fELF\2 and no more"])
def test_an_image_that_a_device_would_read_beyond_never_reaches_it(executor, image, monkeypatch):
    monkeypatch.setattr(executor.driver, "cuModuleLoadData", pytest.fail)
    executor.run(2, 1, 0, BIND + wire.pack_record(Op.MODULE_LOAD, STREAM, data=image), [])
    assert [(r.number, r.result) for r in replies(executor)] == [(2, INVALID_IMAGE)]


def test_a_record_that_is_cut_off_is_refused_where_its_kind_is_passed_over(executor):
    waited = wire.pack_record(Op.WAITED, primary_context(0), 0, Op.STREAM_SYNC, 0)
    executor.run(2, 1, 0, BIND + waited + ALLOC, [])
    with pytest.raises(ProtocolError, match="a batch of 1 calls holds"):
        executor.run(3, 1, 0, BIND + ALLOC + waited[:-4], [])


def test_images_stay_as_long_as_something_was_made_from_them(executor):
    context, library, first, second = (STREAM + n * HANDLE_STEP for n in range(4))
    image = sample("size")
    inside = wire.pack_record(Op.BIND, 1, context)
    create = wire.pack_record(Op.CTX_CREATE, context, 0, 0)
    load = wire.pack_record(Op.MODULE_LOAD, first, data=image)
    executor.run(2, 1, 0, BIND + create, [])
    executor.run(3, 1, 0, inside + load, [])
    assert len(executor.images) == 1
    executor.run(4, 1, 0, BIND + wire.pack_record(Op.CTX_DESTROY, context), [])
    assert not executor.images
    load = wire.pack_record(Op.LIBRARY_LOAD, library, second, data=image)
    executor.run(5, 1, 0, BIND + load, [])
    executor.run(6, 1, 0, BIND + wire.pack_record(Op.PRIMARY_RESET, 0), [])
    assert len(executor.images) == 1
    executor.run(7, 1, 0, BIND + wire.pack_record(Op.LIBRARY_UNLOAD, library), [])
    assert not executor.images
    assert [r.result for r in replies(executor)] == [0, 0, 0]
