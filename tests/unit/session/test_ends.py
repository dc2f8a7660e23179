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
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind
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
        (Op.EVENT_ELAPSED, (EVENT, EVENT + 16), (Op.EVENT_SYNC, EVENT + 16)),
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
    session.expect(Op.COPY_DTOH, seq, out, session.ends.ask(Op.COPY_DTOH, STREAM, BIND))
    session.append(CALL, BIND)
    receive(session, outcome(seq, data=b"1234"))
    session.append(CALL, BIND)
    call, stream = (Op.EVENT_DESTROY,), (Op.STREAM_SYNC, STREAM)
    assert logged(session) == [call, (*MARK, 1, *stream), call, (*WAIT, 1, *stream), call]


@pytest.mark.parametrize("result", [600, 1, 719])
def test_an_answer_that_tells_of_no_end_is_not_logged(session, result):
    answer(session, session.ask(Op.STREAM_QUERY, (STREAM,), BIND).number, result)
    session.append(CALL, BIND)
    assert [said[0] for said in logged(session)] == [Op.MARKED, Op.EVENT_DESTROY]


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
