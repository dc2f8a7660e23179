"""What a ticket waits for, and what later work waits for: CUDA's order, and no more than that."""

from __future__ import annotations

from helpers.fake_cuda import Bench

ILLEGAL_ADDRESS = 700


def test_idle_device_is_done(bench: Bench) -> None:
    assert bench.timeline.fence() == 0
    assert bench.timeline.ticket(bench.stream()) == 0
    assert bench.timeline.done(0)


def test_ticket_is_done_when_its_work_is(bench: Bench) -> None:
    stream = bench.stream()
    work = bench.issue(stream)
    ticket = bench.timeline.ticket(stream)
    assert not bench.timeline.done(ticket)
    work.ended = True
    assert bench.timeline.done(ticket)
    assert bench.timeline.done(ticket)


def test_same_work_has_the_same_ticket_however_often_it_is_asked_for(bench: Bench) -> None:
    first, second = bench.stream(), bench.stream()
    bench.issue(first)
    bench.issue(second)
    for ask in (lambda: bench.timeline.ticket(first), bench.timeline.fence):
        assert ask() == ask()
    recorded = bench.cuda.records
    bench.timeline.fence()
    assert bench.cuda.records == recorded


def test_tickets_grow_in_the_order_of_issue(bench: Bench) -> None:
    streams = [bench.stream() for _ in range(3)]
    tickets = []
    for stream in streams * 2:
        bench.issue(stream)
        tickets.append(bench.timeline.ticket(stream))
    everything = bench.timeline.fence()
    assert tickets == sorted(set(tickets))
    assert everything >= tickets[-1]
    assert bench.timeline.ticket(streams[-1]) <= everything


def test_fence_waits_for_every_stream_and_for_nothing_later(bench: Bench) -> None:
    first, second = bench.stream(), bench.stream(blocking=True)
    works = [bench.issue(first), bench.issue(second)]
    fence = bench.timeline.fence()
    later = bench.issue(first)
    works[0].ended = True
    assert not bench.timeline.done(fence)
    works[1].ended = True
    assert bench.timeline.done(fence)
    assert not later.done


def test_legacy_stream_includes_the_blocking_streams_alone(bench: Bench) -> None:
    blocking, other = bench.stream(blocking=True), bench.stream()
    work = bench.issue(blocking)
    bench.issue(other)
    ticket = bench.timeline.ticket(bench.context.legacy)
    assert not bench.timeline.done(ticket)
    work.ended = True
    assert bench.timeline.done(ticket)


def test_waiting_puts_nothing_into_a_legacy_stream_without_work(bench: Bench) -> None:
    """A mark there would make later work of blocking streams wait for all before it."""
    first, second = bench.stream(blocking=True), bench.stream(blocking=True)
    bench.issue(first)
    bench.timeline.ticket(bench.context.legacy)
    bench.timeline.fence()
    independent = bench.issue(second)
    independent.ended = True
    assert independent.done


def test_mark_of_the_legacy_stream_does_not_wait_for_what_came_later(bench: Bench) -> None:
    legacy, blocking = bench.context.legacy, bench.stream(blocking=True)
    work = bench.issue(legacy)
    bench.issue(blocking)
    ticket = bench.timeline.fence()
    work.ended = True
    assert legacy.mark is not None
    assert bench.timeline.finished(legacy.mark)
    assert not bench.timeline.done(ticket)


def test_mark_of_a_blocking_stream_does_not_wait_for_later_legacy_work(bench: Bench) -> None:
    legacy, blocking = bench.context.legacy, bench.stream(blocking=True)
    work = bench.issue(blocking)
    bench.issue(legacy)
    ticket = bench.timeline.ticket(blocking)
    work.ended = True
    assert bench.timeline.done(ticket)


def test_gate_holds_later_work_of_other_streams(bench: Bench) -> None:
    legacy, other = bench.context.legacy, bench.stream()
    before = bench.issue(other)
    copy = bench.issue(legacy)
    bench.timeline.gate(bench.timeline.mark(legacy))
    after = bench.issue(other)
    before.ended = after.ended = True
    assert before.done
    assert not after.done
    copy.ended = True
    assert after.done


def test_gate_holds_a_stream_that_is_made_later(bench: Bench) -> None:
    copy = bench.issue(bench.context.legacy)
    bench.timeline.gate(bench.timeline.mark(bench.context.legacy))
    after = bench.issue(bench.stream())
    after.ended = True
    assert not after.done
    copy.ended = True
    assert after.done


def test_work_is_ordered_behind_a_fence(bench: Bench) -> None:
    first, second = bench.stream(), bench.stream()
    works = [bench.issue(first), bench.issue(second)]
    fence = bench.timeline.fence()
    bench.timeline.order_after(fence)
    after = bench.issue(first)
    works[0].ended = after.ended = True
    assert not after.done
    works[1].ended = True
    assert after.done


def test_one_stream_is_ordered_behind_another_and_the_rest_is_left_alone(bench: Bench) -> None:
    first, second, third = (bench.stream() for _ in range(3))
    work = bench.issue(first)
    bench.timeline.follow(second, bench.timeline.ticket(first))
    behind = bench.timeline.ticket(second)
    after, beside = bench.issue(second), bench.issue(third)
    after.ended = beside.ended = True
    assert beside.done
    assert not after.done
    # Whoever waits for the second stream waits for what it was made to wait for.
    assert not bench.timeline.done(behind)
    work.ended = True
    assert after.done
    assert bench.timeline.done(behind)


def test_a_stream_is_not_made_to_wait_for_what_cuda_orders_or_is_done(bench: Bench) -> None:
    legacy, blocking, other = bench.context.legacy, bench.stream(blocking=True), bench.stream()
    bench.issue(blocking).ended = True
    done = bench.timeline.ticket(blocking)
    bench.timeline.follow(other, done)
    bench.issue(blocking)
    bench.timeline.follow(blocking, bench.timeline.ticket(blocking))
    records = bench.cuda.records
    bench.timeline.follow(legacy, bench.timeline.ticket(blocking))
    assert bench.timeline.ticket(other) == 0
    assert bench.timeline.ticket(legacy)
    assert bench.cuda.records == records
    assert not bench.errors


def test_work_of_a_destroyed_stream_is_waited_for(bench: Bench) -> None:
    stream = bench.stream(blocking=True)
    work = bench.issue(stream)
    bench.timeline.orphan(stream)
    del bench.context.streams[stream.handle]
    tickets = bench.timeline.fence(), bench.timeline.ticket(bench.context.legacy)
    assert not any(map(bench.timeline.done, tickets))
    work.ended = True
    assert all(map(bench.timeline.done, tickets))


def test_data_is_at_its_target_once_the_ticket_is_done_whichever_is_asked_first(
    bench: Bench,
) -> None:
    stream = bench.stream()
    targets = [bytearray(1), bytearray(1)]
    tickets = []
    for target in targets:
        bench.issue(stream).ended = True
        mark = bench.timeline.mark(stream)
        stream.landings.append((mark.number, memoryview(b"x"), memoryview(target)))
        tickets.append(bench.timeline.ticket(stream))
    assert bench.timeline.done(tickets[1])
    assert targets == [b"x", b"x"]
    assert bench.timeline.done(tickets[0])


def test_fault_ends_every_wait_and_is_told(bench: Bench) -> None:
    stream = bench.stream()
    bench.issue(stream)
    ticket = bench.timeline.ticket(stream)
    bench.cuda.sticky = ILLEGAL_ADDRESS
    assert bench.timeline.done(ticket)
    assert ILLEGAL_ADDRESS in bench.errors


def test_events_come_back_to_be_used_again(bench: Bench) -> None:
    stream = bench.stream()
    used = set()
    for _ in range(100):
        bench.issue(stream).ended = True
        used.add(bench.timeline.mark(stream).raw)
    assert len(used) <= 2


def test_tickets_that_nobody_asks_for_are_forgotten(bench: Bench) -> None:
    stream = bench.stream()
    for _ in range(20_000):
        bench.issue(stream).ended = True
        bench.timeline.ticket(stream)
    assert len(bench.timeline._tickets) < 10_000


def test_work_of_a_destroyed_context_is_over(bench: Bench) -> None:
    bench.issue(bench.stream())
    ticket = bench.timeline.fence()
    assert not bench.timeline.done(ticket)
    bench.timeline.forget(bench.context)
    assert bench.timeline.done(ticket)
