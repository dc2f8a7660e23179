"""What a program was told is done stands in the log, where it was told."""

from __future__ import annotations

import pytest
from helpers.client_session import (
    BIND,
    CALL,
    OTHER_BIND,
    attach,
    attached_session,
    outcome,
    receive,
)

from outlast.session import wire
from outlast.session.calllog import Batch
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.pieces import cut
from outlast.session.schema import MAX_FRAME, ReplyKind
from outlast.session.wire import Reply

CONTEXT = 0x600
STREAM, EVENT = 0x700, 0x800
MARK = (Op.MARKED, CONTEXT)
WAIT = (Op.WAITED, CONTEXT)


@pytest.fixture
def session() -> ClientSession:
    return attached_session()


def logged(session: ClientSession) -> list[tuple[int, ...]]:
    """Return what the log holds, calls as their operation alone."""
    session.seal()
    found: list[tuple[int, ...]] = []
    for batch in session.log.batches:
        for codec, args, _ in wire.CallStream(session.log.parts(batch)[0]):
            if codec.op in (Op.MARKED, Op.WAITED):
                found.append((codec.op, *args))
            elif codec.op is not Op.BIND:
                found.append((codec.op,))
    return found


def answer(session: ClientSession, qid: int, result: int = 0) -> None:
    receive(session, Reply(ReplyKind.ANSWER, qid, result, 0, b""))


@pytest.mark.parametrize(
    ("op", "args", "said"),
    [
        (Op.STREAM_SYNC, (STREAM,), (Op.STREAM_SYNC, STREAM)),
        (Op.STREAM_QUERY, (STREAM,), (Op.STREAM_SYNC, STREAM)),
        (Op.EVENT_SYNC, (EVENT,), (Op.EVENT_SYNC, EVENT)),
        (Op.EVENT_QUERY, (EVENT,), (Op.EVENT_SYNC, EVENT)),
        (Op.CTX_SYNC, (), (Op.CTX_SYNC, 0)),
    ],
)
def test_a_wait_stands_in_front_of_the_next_call_once(session, op, args, said):
    session.append(CALL, BIND)
    for _ in range(3):
        answer(session, session.ask(op, args, BIND).number)
    session.append(CALL, BIND)
    session.append(CALL, BIND)
    call = (Op.EVENT_DESTROY,)
    assert logged(session) == [call, (*WAIT, 0, *said), call, call]


def test_a_wait_that_calls_came_into_says_where_it_began(session):
    session.append(CALL, BIND)
    query = session.ask(Op.STREAM_SYNC, (STREAM,), BIND)
    session.append(CALL, OTHER_BIND)
    answer(session, query.number)
    session.append(CALL, BIND)
    call, stream = (Op.EVENT_DESTROY,), (Op.STREAM_SYNC, STREAM)
    assert logged(session) == [call, (*MARK, 1, *stream), call, (*WAIT, 1, *stream), call]


def test_a_copy_that_the_program_did_not_wait_for_is_told_when_it_has_landed(session):
    out = memoryview(bytearray(4))
    seq = session.append(CALL, BIND)
    session.expect(Op.COPY_DTOH, seq, out, session.ends.ask(Op.COPY_DTOH, (STREAM,), BIND))
    session.append(CALL, BIND)
    receive(session, outcome(seq, data=b"1234"))
    session.append(CALL, BIND)
    call, stream = (Op.EVENT_DESTROY,), (Op.STREAM_SYNC, STREAM)
    assert logged(session) == [call, (*MARK, 1, *stream), call, (*WAIT, 1, *stream), call]


@pytest.mark.parametrize("result", [600, 1])
def test_an_answer_that_tells_of_no_end_is_not_logged(session, result):
    for _ in range(3):
        answer(session, session.ask(Op.STREAM_QUERY, (STREAM,), BIND).number, result)
    session.append(CALL, BIND)
    assert logged(session) == [(Op.EVENT_DESTROY,)]


def test_other_queries_leave_no_trace(session):
    answer(session, session.ask(Op.MEM_INFO, (), BIND).number)
    session.append(CALL, BIND)
    assert logged(session) == [(Op.EVENT_DESTROY,)]


def test_waits_are_sent_again_with_the_outcomes_in_front_of_their_calls(session):
    seq = session.append(CALL, BIND)
    answer(session, session.ask(Op.CTX_SYNC, (), BIND).number)
    pending = session.expect(Op.MEM_ALLOC, session.append(CALL, BIND))
    session.seal()
    session.take_outgoing()
    receive(session, outcome(pending.number, value=77))
    attach(session, generation=2, applied=0)
    streams = [frames[0][wire.CALLS_HEADER.size :] for frames in session.take_outgoing()]
    ops = [codec.op for stream in streams for codec, _, _ in wire.CallStream(stream)]
    assert seq == 1
    assert [op for op in ops if op is not Op.BIND] == [
        Op.EVENT_DESTROY,
        Op.WAITED,
        Op.OUTCOME,
        Op.EVENT_DESTROY,
    ]


def test_thousands_of_waits_in_front_of_a_call_fit_into_messages(session):
    session.append(CALL, BIND)
    session.seal()
    session.take_outgoing()
    events = range(EVENT, EVENT + 40_000 * 16, 16)
    queries = [session.ask(Op.EVENT_SYNC, (event,), BIND).number for event in events]
    session.take_outgoing()
    for qid in queries:
        answer(session, qid)
    session.append(CALL, OTHER_BIND)
    session.append(wire.pack_record(Op.COPY_HTOD, 1, 0, 0, payload=True), BIND, b"payload")
    session.ask(Op.CTX_SYNC, (), BIND)
    said, calls = [], []
    for frames in session.take_outgoing():
        assert len(frames[0]) < MAX_FRAME
        message = wire.parse_message(frames)
        read = list(wire.CallStream(bytes(message.frames[0]), frames[1:]))
        said += [args[3] for codec, args, _ in read if codec.op is Op.WAITED]
        ops = [codec.op for codec, _, _ in read if codec.sequenced]
        assert len(ops) == message["count"]
        calls += [(message["first_seq"] + at, op) for at, op in enumerate(ops)]
    assert said == list(events)
    assert calls == [(2, Op.EVENT_DESTROY), (3, Op.COPY_HTOD)]


def test_thousands_of_queries_that_are_asked_again_fit_into_messages(session):
    for event in range(EVENT, EVENT + 40_000 * 16, 16):
        session.ask(Op.EVENT_SYNC, (event,), BIND)
    attach(session, generation=2)
    outgoing = session.take_outgoing()
    assert max(len(frames[0]) for frames in outgoing) < MAX_FRAME
    streams = [frames[0][wire.CALLS_HEADER.size :] for frames in outgoing]
    read = [codec.op for stream in streams for codec, _, _ in wire.CallStream(stream)]
    assert read.count(Op.EVENT_SYNC) == 40_000


def test_an_outcome_stays_with_its_call_where_a_batch_is_cut(session):
    outcomes = [wire.pack_record(Op.OUTCOME, seq, 0, 0) for seq in range(1, 40_001)]
    stream = b"".join(record + CALL for record in outcomes)
    messages = cut(Batch(1, 40_000, stream, []), [stream])
    assert len(messages) > 2
    assert b"".join(parts[0] for _, _, parts in messages) == stream
    expected = 1
    for first_seq, count, (records,) in messages:
        assert first_seq == expected
        assert next(iter(wire.CallStream(records)))[0].op is Op.OUTCOME
        expected += count
    assert expected == 40_001


def test_elapsed_time_tells_of_two_ends(session):
    answer(session, session.ask(Op.EVENT_ELAPSED, (EVENT, EVENT + 16), BIND).number, 600)
    session.append(CALL, BIND)
    query = session.ask(Op.EVENT_ELAPSED, (EVENT, EVENT + 16), BIND)
    session.append(CALL, OTHER_BIND)
    answer(session, query.number)
    session.append(CALL, BIND)
    waits = [(*WAIT, 0, Op.EVENT_SYNC, event) for event in (EVENT, EVENT + 16)]
    call = (Op.EVENT_DESTROY,)
    assert logged(session) == [call, call, *waits, call]
