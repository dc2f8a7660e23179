from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import LinkClosed, ProtocolError, SessionLost
from outlast.session import client as client_module
from outlast.session import wire
from outlast.session.calllog import CallLog
from outlast.session.client import BATCH_BYTES, BATCH_CALLS, ClientSession, Phase
from outlast.session.pending import gaps
from outlast.session.schema import HANDLE_FIRST, Intent, Kind, Op, ReplyKind
from outlast.session.wire import Message, Reply

BIND = wire.pack_record(Op.BIND, 1, 0x600)
OTHER_BIND = wire.pack_record(Op.BIND, 2, 0x600)
CALL = wire.pack_record(Op.EVENT_DESTROY, 1)
SECRET = bytes(32)
STICKY = 719  # CUDA_ERROR_LAUNCH_FAILED


def new_session(intent: Intent = Intent.CREATE, log: CallLog | None = None) -> ClientSession:
    return ClientSession("s", b"i" * 16, "token", log, intent)


def attached_message(generation: int, applied: int = 0, **fields: Any) -> Message:
    values: dict[str, Any] = {"recoverable": 0, "restored_from": 0, "inventory": {}, **fields}
    frame = wire.pack_message(Kind.ATTACHED, generation=generation, applied=applied, **values)
    return wire.parse_message([frame])


def attach(session: ClientSession, generation: int = 1, applied: int = 0, **fields: Any) -> Message:
    """Attach and return the ATTACH that was sent."""
    message = wire.parse_message([session.attach(generation, SECRET)])
    session.attached(attached_message(generation, applied, **fields))
    return message


def attached_session() -> ClientSession:
    session = new_session()
    attach(session)
    return session


def sent(session: ClientSession) -> list[Message]:
    return [wire.parse_message(frames) for frames in session.take_outgoing()]


def ops(message: Message) -> list[Op]:
    stream, *payloads = message.frames
    return [codec.op for codec, _, _ in wire.iter_records(stream, payloads)]


def receive(session: ClientSession, *replies: Reply, applied: int = 0, generation: int = 1) -> None:
    stream = b"".join(wire.pack_reply(reply, 4096)[0] for reply in replies)
    session.receive(wire.parse_message([wire.pack_replies(generation, applied, stream)]))


def tell_epoch(session: ClientSession, recoverable: int, error: str = "") -> None:
    frame = wire.pack_message(
        Kind.EPOCH, generation=session.generation, seq=0, recoverable=recoverable, error=error
    )
    session.receive(wire.parse_message([frame]))


def call(session: ClientSession, count: int = 1) -> None:
    for _ in range(count):
        session.append(CALL, BIND)
    session.seal()


def outcome(seq: int, result: int = 0, value: int = 0, data: bytes = b"") -> Reply:
    return Reply(ReplyKind.OUTCOME, seq, result, value, data)


def failure(seq: int, result: int = 2, context: int = 0x600) -> Reply:
    return Reply(ReplyKind.DEFERRED, seq, result, context)


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


# -- attachments ---------------------------------------------------------------------------


def test_hello_says_what_it_wants():
    session = new_session()
    call(session, 2)
    hello = wire.parse_message([session.hello("build", True, 13000)])
    assert Intent(hello["intent"]) is Intent.CREATE
    assert (hello["log_head"], hello["next_seq"], hello["relay"]) == (1, 3, 1)
    attach(session)
    hello = wire.parse_message([session.hello("build", False, 13000)])
    assert Intent(hello["intent"]) is Intent.RESUME
    assert hello["generation"] == 1


def test_only_what_is_not_applied_is_sent_again():
    session = attached_session()
    for _ in range(3):
        call(session)
    sent(session)
    session.detached()
    assert session.phase is Phase.DETACHED
    attach(session, 2, applied=2)
    assert [m["first_seq"] for m in sent(session)] == [3]
    assert session.replayed_calls == 0


def test_a_restored_worker_gets_the_log_with_the_outcomes():
    session = attached_session()
    session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    call(session)
    sent(session)
    receive(session, outcome(1, 0, 0x1000), applied=2)
    session.detached()
    attach(session, 2, applied=0)
    [batch] = sent(session)
    assert ops(batch) == [Op.BIND, Op.OUTCOME, Op.EVENT_DESTROY, Op.EVENT_DESTROY]
    assert session.replayed_calls == 2


def test_a_call_that_was_never_sent_goes_without_outcomes():
    session = attached_session()
    call(session)
    [batch] = sent(session)
    assert ops(batch) == [Op.BIND, Op.EVENT_DESTROY]


def test_unanswered_queries_are_asked_again_at_their_places():
    session = attached_session()
    first = session.ask(Op.MEM_INFO, (), BIND)
    call(session)
    session.ask(Op.MEM_INFO, (), BIND)
    call(session)
    sent(session)
    receive(session, Reply(ReplyKind.ANSWER, first.number, 0, 0, bytes(16)))
    session.detached()
    attach(session, 2, applied=0)
    streams = [ops(m) for m in sent(session)]
    assert streams == [
        [Op.BIND, Op.EVENT_DESTROY, Op.BIND, Op.MEM_INFO],
        [Op.BIND, Op.EVENT_DESTROY],
    ]


@pytest.mark.parametrize("generation", [1, 2])
def test_an_older_generation_is_not_accepted(generation: int):
    session = new_session()
    attach(session, 2)
    session.detached()
    with pytest.raises(ProtocolError, match=f"generation {generation}"):
        session.attach(generation, SECRET)


def test_an_answer_to_another_attachment_is_not_accepted():
    session = new_session()
    session.attach(2, SECRET)
    with pytest.raises(ProtocolError, match="generation 1"):
        session.attached(attached_message(1))
    assert session.phase is Phase.DETACHED


def test_a_worker_behind_the_log_loses_the_session():
    session = attached_session()
    for _ in range(3):
        call(session)
    pending = session.ask(Op.MEM_INFO, (), BIND)
    tell_epoch(session, 2)
    session.detached()
    session.attach(2, SECRET)
    with pytest.raises(SessionLost) as caught:
        session.attached(attached_message(2, applied=1))
    assert (caught.value.epoch, caught.value.head) == (1, 3)  # type: ignore[attr-defined]
    assert session.phase is Phase.CLOSED
    assert isinstance(pending.error, SessionLost)


def test_a_worker_at_the_end_of_what_was_truncated_goes_on():
    session = attached_session()
    for _ in range(3):
        call(session)
    tell_epoch(session, 2)
    session.detached()
    attach(session, 2, applied=2)
    assert [m["first_seq"] for m in sent(session)] == [3]


def test_a_worker_ahead_of_the_log_loses_the_session():
    session = new_session()
    session.attach(1, SECRET)
    with pytest.raises(SessionLost):
        session.attached(attached_message(1, applied=1))


def test_a_failed_epoch_truncates_nothing():
    session = attached_session()
    call(session)
    tell_epoch(session, 1, error="the disk is full")
    assert session.log.head == 1


def test_a_new_attachment_asks_for_an_epoch_again():
    log = CallLog(limit=100)
    session = new_session(log=log)
    attach(session)
    call(session, 4)
    assert log.wants_epoch()
    assert not log.wants_epoch()
    session.detached()
    attach(session, 2)
    assert log.wants_epoch()


# -- adoption ------------------------------------------------------------------------------


def test_an_adopter_begins_behind_the_epoch():
    session = new_session(Intent.ADOPT)
    attach(session, 4, applied=7, inventory={"next_handle": HANDLE_FIRST + 160})
    assert session.append(CALL, BIND) == 8
    assert session.log.head == 8
    assert session.first_handle == HANDLE_FIRST + 160
    session.seal()
    assert [m["first_seq"] for m in sent(session)] == [8]


def test_an_adopter_is_not_told_of_failures_before_it():
    session = new_session(Intent.ADOPT)
    attach(session, 4, applied=7)
    receive(session, failure(7), failure(3, STICKY), outcome(5), applied=7, generation=4)
    assert session.take_deferred(0x600) == 0
    assert session.sticky == 0
    frame = session.ack()
    assert frame is not None
    assert wire.parse_message([frame])["deferred"] == [3, 7]


def test_an_adopter_resumes_what_it_adopted():
    session = new_session(Intent.ADOPT)
    attach(session, 4, applied=7)
    call(session)
    session.detached()
    attach(session, 5, applied=7)
    assert session.next_seq == 9


# -- the end -------------------------------------------------------------------------------


def test_closing_fails_everything_that_waits():
    session = attached_session()
    pending = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    query = session.ask(Op.MEM_INFO, (), BIND)
    error = LinkClosed("closed")
    session.close(error)
    session.close(SessionLost("later"))
    assert pending.error is query.error is session.error is error
    assert pending.done
    assert query.done
    assert session.take_outgoing() == []
