"""Errors that end a context: what is recovered from, and what the program is told."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.client_session import (
    BIND,
    CALL,
    STICKY,
    attach,
    call,
    failure,
    new_session,
    ops,
    outcome,
    receive,
    sent,
)

from outlast.session import wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.recovery import FaultRecovery
from outlast.session.schema import Kind, ReplyKind, Wish
from outlast.session.wire import Message, Reply

ILLEGAL_ADDRESS = 700
INVALID_VALUE = 1


def recovering(calls: int = 0) -> ClientSession:
    """Return an attached session that recovers, with calls that have been sent."""
    session = new_session()
    session.recovery = FaultRecovery(True)
    attach(session)
    call(session, calls)
    sent(session)
    return session


def hello(session: ClientSession) -> Message:
    return wire.parse_message([session.hello("build", False, 13000)])


def commit(session: ClientSession, seq: int, recoverable: int = 0) -> None:
    fields: dict[str, Any] = {"seq": seq, "recoverable": recoverable, "error": ""}
    frame = wire.pack_message(Kind.EPOCH, generation=session.generation, **fields)
    session.receive(wire.parse_message([frame]))


def fail(session: ClientSession, seq: int, result: int = STICKY) -> bool:
    """Let a call end the context; return whether the program is spared."""
    receive(session, failure(seq, result), generation=session.generation)
    return not session.sticky


def come_back(session: ClientSession, applied: int = 0, recoverable: int = 0) -> list[Message]:
    """Attach to another worker; return what is sent again."""
    session.detached()
    attach(session, session.generation + 1, applied, recoverable=recoverable)
    return sent(session)


def test_an_error_that_ends_the_context_makes_the_client_want_a_fresh_worker():
    session = recovering(2)
    assert hello(session)["wishes"] == 0
    assert fail(session, 2)
    assert session.recovery.wanted
    assert hello(session)["wishes"] == Wish.FRESH
    assert session.recovery.reason.startswith(f"error {STICKY}, noticed at call 2")
    assert session.take_deferred(0x600) == 0


def test_the_log_is_replayed_without_the_error_and_with_what_landed_before():
    session = recovering()
    landed = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    waiting = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    call(session)
    sent(session)
    receive(session, outcome(1, 0, 77), failure(3, STICKY), outcome(2, STICKY), applied=3)
    assert landed.done
    assert not waiting.done
    [batch] = come_back(session)
    assert ops(batch) == [Op.BIND, Op.OUTCOME, *[Op.EVENT_DESTROY] * 3]
    assert not session.recovery.wanted
    assert hello(session)["wishes"] == 0
    receive(session, outcome(2, 0, 88), applied=3, generation=2)
    assert waiting.reply is not None
    assert waiting.reply.value == 88
    assert (session.recovery.count, session.sticky) == (1, 0)


def test_what_the_worker_says_behind_the_error_is_not_heard():
    session = recovering()
    later = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    call(session)
    sent(session)
    receive(session, failure(1, STICKY), outcome(1, INVALID_VALUE))
    receive(session, outcome(1), failure(2))
    assert not later.done
    assert not session.deferred
    assert session.ack() is None


def test_queries_are_asked_again_and_get_an_answer_of_the_fresh_worker():
    session = recovering(1)
    pending = session.ask(Op.CTX_SYNC, (), BIND)
    sent(session)
    receive(session, failure(1, STICKY), Reply(ReplyKind.ANSWER, pending.number, STICKY))
    assert not pending.done
    assert [ops(message)[-1] for message in come_back(session)] == [Op.CTX_SYNC]
    receive(session, Reply(ReplyKind.ANSWER, pending.number), applied=1, generation=2)
    assert pending.reply is not None
    assert pending.reply.result == 0


def test_the_same_call_failing_again_is_reported_for_good():
    session = recovering(3)
    assert fail(session, 2)
    come_back(session)
    assert not fail(session, 2)
    assert session.sticky == STICKY
    assert not session.recovery.wanted
    assert session.log.outcomes[2].result == STICKY
    come_back(session)
    assert not fail(session, 3)
    assert session.recovery.count == 1


def test_an_answer_alone_can_tell_of_the_error():
    session = recovering(1)
    pending = session.ask(Op.CTX_SYNC, (), BIND)
    sent(session)
    receive(session, Reply(ReplyKind.ANSWER, pending.number, ILLEGAL_ADDRESS))
    assert session.recovery.wanted
    come_back(session)
    receive(session, Reply(ReplyKind.ANSWER, pending.number, ILLEGAL_ADDRESS), generation=2)
    assert session.sticky == ILLEGAL_ADDRESS
    assert pending.done


def test_an_error_noticed_later_the_second_time_may_have_the_same_cause():
    session = recovering(9)
    assert fail(session, 2)
    come_back(session)
    assert not fail(session, 9)


def test_an_error_noticed_earlier_the_second_time_may_have_the_same_cause():
    session = recovering(9)
    assert fail(session, 9)
    come_back(session)
    assert not fail(session, 2)


def synchronise(session: ClientSession) -> None:
    """Have a wait for everything answered with success."""
    pending = session.ask(Op.CTX_SYNC, (), BIND)
    sent(session)
    receive(session, Reply(ReplyKind.ANSWER, pending.number), generation=session.generation)


def test_an_error_behind_what_has_gone_well_is_another_one():
    session = recovering(2)
    assert fail(session, 2)
    come_back(session)
    synchronise(session)
    call(session, 2)
    assert fail(session, 4)
    come_back(session)
    assert session.recovery.count == 2


def test_an_error_at_a_call_that_went_well_the_first_time_is_another_one():
    session = recovering(2)
    synchronise(session)
    call(session, 2)
    assert fail(session, 4)
    come_back(session)
    assert fail(session, 1)
    assert session.recovery.wanted


def test_a_copy_to_the_host_shows_that_what_came_before_has_gone_well():
    session = recovering(1)
    session.expect(Op.COPY_DTOH, session.append(CALL, BIND))
    receive(session, outcome(2), applied=2)
    call(session)
    assert fail(session, 3)
    come_back(session)
    assert fail(session, 2)


def test_an_allocation_does_not_show_it():
    session = recovering(1)
    session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    receive(session, outcome(2), applied=2)
    call(session)
    assert fail(session, 3)
    come_back(session)
    assert not fail(session, 2)


def test_what_went_well_in_one_worker_may_fail_in_the_next():
    session = recovering(2)
    assert fail(session, 2)
    come_back(session)
    synchronise(session)
    come_back(session)  # that worker has died: this one replays from the beginning
    assert not fail(session, 1)


def test_three_recoveries_without_an_epoch_are_the_last():
    session = recovering()
    for _ in range(FaultRecovery.MOST):
        call(session, 2)
        synchronise(session)
        call(session)
        assert fail(session, session.next_seq - 1)
        come_back(session)
        synchronise(session)
    call(session)
    assert not fail(session, session.next_seq - 1)
    assert session.recovery.count == FaultRecovery.MOST


def test_an_epoch_allows_as_many_again():
    session = recovering()
    for turn in range(3 * FaultRecovery.MOST):
        call(session, 2)
        assert fail(session, session.next_seq - 1), turn
        come_back(session, session.recoverable)
        commit(session, session.next_seq - 1)
    assert session.recovery.count == 3 * FaultRecovery.MOST


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_an_epoch_before_the_call_that_fails_does_not_make_it_another(seq: int):
    session = recovering(4)
    assert fail(session, 4)
    come_back(session)
    commit(session, seq)
    assert not fail(session, 4)


def test_an_epoch_that_failed_counts_for_nothing():
    session = recovering(2)
    assert fail(session, 2)
    come_back(session)
    fields: dict[str, Any] = {"seq": 2, "recoverable": 0, "error": "the disk is full"}
    frame = wire.pack_message(Kind.EPOCH, generation=2, **fields)
    session.receive(wire.parse_message([frame]))
    assert not fail(session, 2)


def test_errors_that_leave_the_context_alive_are_reported_as_ever():
    session = recovering(2)
    receive(session, failure(1, INVALID_VALUE, 0x600), applied=2)
    assert session.take_deferred(0x600) == INVALID_VALUE
    assert not session.recovery.wanted


def test_without_the_setting_the_error_is_reported_at_once():
    session = new_session()
    attach(session)
    call(session)
    assert not fail(session, 1)
    assert hello(session)["wishes"] == 0
