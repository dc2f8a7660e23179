"""The client's state machine: attachments, adoption and the end."""

from __future__ import annotations

import pytest
from helpers.client_session import (
    BIND,
    CALL,
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

from outlast.errors import LinkClosed, ProtocolError, SessionLost
from outlast.session import wire
from outlast.session.calllog import CallLog
from outlast.session.operations import Op
from outlast.session.phase import Phase
from outlast.session.schema import HANDLE_FIRST, Intent, ReplyKind
from outlast.session.wire import Reply

# -- attachments ---------------------------------------------------------------------------


def test_hello_says_what_it_wants():
    session = new_session()
    call(session, 2)
    hello = wire.parse_message([session.hello("build", True, 13000)])
    assert Intent(hello["intent"]) is Intent.CREATE
    assert (hello["log_head"], hello["next_seq"], hello["wishes"]) == (1, 3, 1)
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


def test_an_answer_that_comes_after_the_end_does_not_attach():
    session = new_session()
    session.attach(1, SECRET)
    session.close(LinkClosed("the session was closed"))
    with pytest.raises(LinkClosed):
        session.attached(attached_message(1))
    assert session.phase is Phase.CLOSED


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
    assert log.wants_epoch(0)
    assert not log.wants_epoch(0)
    session.detached()
    attach(session, 2)
    assert log.wants_epoch(0)


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
