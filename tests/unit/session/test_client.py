"""The client's state machine: calls, answers and acknowledgements."""

from __future__ import annotations

import pytest
from helpers.client_session import (
    BIND,
    CALL,
    OTHER_BIND,
    SECRET,
    STICKY,
    attach,
    attached_message,
    attached_session,
    call,
    failure,
    new_session,
    ops,
    outcome,
    receive,
    sent,
    tell_epoch,
)

from outlast.errors import ProtocolError
from outlast.session import client as client_module
from outlast.session import wire
from outlast.session.client import BATCH_BYTES, BATCH_CALLS
from outlast.session.operations import Op
from outlast.session.pending import gaps
from outlast.session.schema import ReplyKind
from outlast.session.wire import Reply

# -- calls ---------------------------------------------------------------------------------


def test_calls_are_numbered_from_one_and_batched_behind_their_bind():
    session = attached_session()
    assert [session.append(CALL, BIND) for _ in range(3)] == [1, 2, 3]
    session.append(CALL, OTHER_BIND)
    assert not session.has_unsent
    session.seal()
    [batch] = sent(session)
    assert (batch["first_seq"], batch["count"]) == (1, 4)
    assert ops(batch) == [Op.BIND, *[Op.EVENT_DESTROY] * 3, Op.BIND, Op.EVENT_DESTROY]


def test_each_batch_names_its_caller_anew():
    session = attached_session()
    call(session)
    call(session)
    assert [ops(batch)[0] for batch in sent(session)] == [Op.BIND, Op.BIND]


def test_a_batch_is_sealed_at_its_size():
    session = attached_session()
    for _ in range(BATCH_CALLS):
        session.append(CALL, BIND)
    assert [batch["count"] for batch in sent(session)] == [BATCH_CALLS]
    record = wire.pack_record(Op.COPY_HTOD, 1, 0, 0, payload=True)
    session.append(record, BIND, bytes(BATCH_BYTES))
    [batch] = sent(session)
    assert len(batch.frames[1]) == BATCH_BYTES


def test_nothing_is_sent_before_the_attachment():
    session = new_session()
    call(session)
    session.attach(1, SECRET)
    assert session.take_outgoing() == []
    session.attached(attached_message(1))
    assert len(sent(session)) == 1


def test_the_window_holds_batches_back_and_queries_behind_them():
    session = attached_session()
    session.window = 1
    call(session)
    session.ask(Op.MEM_INFO, (), BIND)
    call(session)
    session.ask(Op.CTX_SYNC, (), BIND)
    first = sent(session)
    assert [ops(m)[-1] for m in first] == [Op.MEM_INFO]
    assert sent(session) == []
    receive(session, applied=1)
    assert [m["first_seq"] for m in sent(session)] == [2]
    assert not session.has_unsent


def test_a_query_travels_when_the_window_is_full_of_what_is_before_it():
    session = attached_session()
    session.window = 1
    call(session)
    sent(session)
    session.ask(Op.MEM_INFO, (), BIND)
    [message] = sent(session)
    assert message["count"] == 0
    assert ops(message) == [Op.BIND, Op.MEM_INFO]


def test_the_number_of_batches_in_flight_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "WINDOW_BATCHES", 2)
    session = attached_session()
    for _ in range(3):
        call(session)
    assert len(sent(session)) == 2
    receive(session, applied=1)
    assert len(sent(session)) == 1


def test_the_backlog_is_what_is_not_applied():
    session = attached_session()
    assert session.backlog == 0
    call(session, 2)
    waiting = session.backlog
    assert waiting > 0
    sent(session)
    assert session.backlog == waiting
    receive(session, applied=2)
    assert session.backlog == 0


# -- answers -------------------------------------------------------------------------------


def test_an_outcome_lands_once_and_in_the_log():
    session = attached_session()
    seq = session.append(CALL, BIND)
    pending = session.expect(Op.MEM_ALLOC, seq)
    session.seal()
    receive(session, outcome(seq, 0, 0x1000), applied=1)
    receive(session, outcome(seq, 2, 0))
    assert pending.done
    assert pending.reply is not None
    assert pending.reply.value == 0x1000
    assert session.log.outcomes[seq].value == 0x1000


def test_bytes_land_where_the_program_wants_them():
    session = attached_session()
    target = bytearray(4)
    seq = session.append(CALL, BIND)
    pending = session.expect(Op.COPY_DTOH, seq, memoryview(target))
    receive(session, outcome(seq, data=b"abcd"))
    assert target == b"abcd"
    assert pending.out is None
    assert pending.reply is not None
    assert pending.reply.data == b""


def test_a_copy_of_another_length_is_an_error_and_touches_nothing():
    session = attached_session()
    target = bytearray(4)
    pending = session.expect(Op.COPY_DTOH, session.append(CALL, BIND), memoryview(target))
    receive(session, outcome(1, data=b"abc"))
    assert isinstance(pending.error, ProtocolError)
    assert target == bytes(4)


def test_a_failed_copy_touches_nothing():
    session = attached_session()
    target = bytearray(4)
    pending = session.expect(Op.COPY_DTOH, session.append(CALL, BIND), memoryview(target))
    receive(session, outcome(1, result=400))
    assert pending.error is None
    assert pending.reply is not None
    assert pending.reply.result == 400
    assert target == bytes(4)


def test_a_query_is_answered_by_its_number():
    session = attached_session()
    first = session.ask(Op.MEM_INFO, (), BIND)
    second = session.ask(Op.MEM_INFO, (), BIND)
    receive(session, Reply(ReplyKind.ANSWER, second.number, 0, 0, b"x" * 16))
    assert second.done
    assert not first.done


def test_a_late_failure_is_reported_once_to_its_context():
    session = attached_session()
    call(session)
    receive(session, failure(1, 2, 0x600), applied=1)
    receive(session, failure(1, 2, 0x600))
    assert session.take_deferred(0x700) == 0
    assert session.take_deferred(0x600) == 2
    assert session.take_deferred(0x600) == 0
    assert session.log.outcomes[1].result == 2


def test_a_sticky_failure_stays():
    session = attached_session()
    call(session)
    receive(session, failure(1, STICKY), applied=1)
    assert session.sticky == STICKY
    assert session.take_deferred(0x600) == 0


def test_a_sticky_outcome_stays_too():
    session = attached_session()
    session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    receive(session, outcome(1, STICKY))
    assert session.sticky == STICKY


def test_messages_of_another_generation_are_ignored():
    session = attached_session()
    pending = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    session.detached()
    attach(session, 2)
    receive(session, outcome(1), failure(1), applied=1, generation=1)
    assert not pending.done
    assert session.applied == 0
    assert not session.deferred


# -- acknowledgements ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pending", "end", "expected"),
    [
        ([], 5, []),
        ([1], 2, []),
        ([3], 6, [(4, 5)]),
        ([2, 3, 7], 10, [(4, 6), (8, 9)]),
    ],
)
def test_gaps_between_what_is_waited_for(
    pending: list[int], end: int, expected: list[tuple[int, int]]
):
    assert gaps(pending, end) == expected


def test_batches_carry_the_cumulative_acknowledgement():
    session = attached_session()
    for _ in range(2):
        session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    session.seal()
    assert [m["acked"] for m in sent(session)] == [0]
    receive(session, outcome(1), applied=2)
    call(session)
    assert [m["acked"] for m in sent(session)] == [1]


def test_an_acknowledgement_tells_gaps_and_failures_once():
    session = attached_session()
    for _ in range(3):
        session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    call(session)
    receive(session, outcome(2), failure(4), applied=4)
    frame = session.ack()
    assert frame is not None
    ack = wire.parse_message([frame])
    assert (ack["acked"], ack["ranges"], ack["deferred"]) == (0, [(2, 2), (4, 4)], [4])
    assert session.ack() is None
    receive(session, outcome(1))
    frame = session.ack()
    assert frame is not None
    ack = wire.parse_message([frame])
    assert (ack["acked"], ack["deferred"]) == (2, [])


def test_a_repeated_failure_is_acknowledged_again():
    session = attached_session()
    call(session)
    receive(session, failure(1), applied=1)
    assert session.ack() is not None
    receive(session, failure(1))
    frame = session.ack()
    assert frame is not None
    assert wire.parse_message([frame])["deferred"] == [1]


def test_an_attachment_tells_what_has_landed():
    session = attached_session()
    for _ in range(3):
        session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    session.seal()
    sent(session)
    receive(session, outcome(1), outcome(3), failure(2), applied=3)
    session.detached()
    message = attach(session, 2, applied=3)
    assert (message["acked"], message["ranges"]) == (1, [(3, 3)])
    assert message["deferred"] == [2]
    assert message["replay_to"] == 3


def test_more_failures_than_one_message_holds_are_told_in_several(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("outlast.session.deferred.MAX_LIST", 2)
    session = attached_session()
    call(session, 5)
    receive(session, *[failure(seq) for seq in range(1, 6)], applied=5)
    told = []
    while (frame := session.ack()) is not None:
        told.append(wire.parse_message([frame])["deferred"])
    assert told == [[1, 2], [3, 4], [5]]


def test_a_failure_is_forgotten_once_no_epoch_can_owe_it():
    session = attached_session()
    call(session)
    receive(session, failure(1), applied=1)
    session.ack()
    tell_epoch(session, 1)
    receive(session, failure(1))
    assert session.take_deferred(0x600) == 2
    assert session.take_deferred(0x600) == 0
    session.ack()
    call(session)
    tell_epoch(session, 2)
    assert len(session._landed_deferred) == 0
