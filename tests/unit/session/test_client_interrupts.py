"""Ctrl-C in the middle of a call: the call is in the log or it is not, and the rest is whole."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from helpers.client_session import attach, attached_session, failure, outcome, receive

from outlast.session import calllog, client, ends, pending, wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind
from outlast.session.wire import Reply

FILES = {module.__file__ for module in (client, calllog, ends, pending)}
BINDS = [wire.pack_record(Op.BIND, 1, context) for context in (0x600, 0x700)]
#: What a program does: one-way calls in two contexts, some with a payload, some at a batch's end.
CALLS = 12


def make(session: ClientSession, number: int) -> None:
    """Make call ``number``; it can be told by its address."""
    payload = bytes([number]) * 5000 if number % 3 == 0 else None
    record = wire.pack_record(
        Op.COPY_HTOD, number, 0, 0, data=None if payload else b"x", payload=payload is not None
    )
    session.append(record, BINDS[number // 2 % 2], payload)
    if number % 4 == 3:
        session.seal()


def interrupted(at: int, action: Callable[[], None]) -> bool:
    """Do something, interrupted before its line number ``at``; return whether it came to that."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and next(lines) == at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def sent_calls(session: ClientSession) -> list[tuple[int, int, bytes]]:
    """Return seq, number and context of each call that is sent, the first time it is."""
    found: dict[int, tuple[int, int, bytes]] = {}
    for frames in session.take_outgoing():
        message = wire.parse_message(frames)
        stream, *payloads = message.frames
        seq, bind = message["first_seq"], b""
        for codec, args, data in wire.CallStream(stream, payloads):
            if codec.op is Op.BIND:
                bind = wire.pack_record(Op.BIND, *args)
                continue
            assert bytes(data) == (bytes([args[0]]) * 5000 if args[0] % 3 == 0 else b"x")
            found.setdefault(seq, (seq, args[0], bind))
            seq += 1
        assert seq == message["first_seq"] + message["count"]
    return [found[seq] for seq in sorted(found)]


def test_a_call_that_is_interrupted_anywhere_leaves_the_log_whole() -> None:
    for number in range(CALLS):
        for at in itertools.count(1):
            session = attached_session()
            for other in range(number):
                make(session, other)
            again = interrupted(at, lambda: make(session, number))  # noqa: B023
            for other in range(number + 1, CALLS):
                make(session, other)
            session.seal()

            calls = sent_calls(session)

            seqs, numbers, binds = zip(*calls, strict=True)
            assert seqs == tuple(range(1, len(calls) + 1)), (number, at)
            assert seqs[-1] == session.next_seq - 1
            assert [n for n in numbers if n != number] == [n for n in range(CALLS) if n != number]
            assert list(numbers) == sorted(set(numbers))
            assert list(binds) == [BINDS[n // 2 % 2] for n in numbers]
            if not again:
                assert number in numbers
                break


def test_the_outcome_of_a_call_that_nobody_waits_for_any_more_is_logged() -> None:
    session = attached_session()
    session.append(wire.pack_record(Op.MEM_ALLOC, 64), BINDS[0])
    session.seal()
    session.take_outgoing()

    receive(session, outcome(1, value=0x1000), applied=1)

    assert session.log.outcomes[1].value == 0x1000


def test_what_is_interrupted_while_it_lands_lands_with_the_next_connection() -> None:
    for at in itertools.count(1):
        session, out = attached_session(), bytearray(4)
        copy = session.append(wire.pack_record(Op.COPY_DTOH, 1, 0, 4, 0), BINDS[0])
        end = session.ends.ask(Op.COPY_DTOH, (0,), BINDS[0])
        read = session.expect(Op.COPY_DTOH, copy, memoryview(out), end)
        failing = session.append(wire.pack_record(Op.EVENT_DESTROY, 1), BINDS[0])
        query = session.ask(Op.EVENT_SYNC, (5,), BINDS[0])
        session.take_outgoing()
        landed, late = outcome(copy, data=b"data"), failure(failing, 400)
        answer = Reply(ReplyKind.ANSWER, query.number)

        again = interrupted(at, lambda: receive(session, landed, late, answer, applied=2))  # noqa: B023
        session.detached()
        hello = attach(session, 2, applied=2)
        replies = [landed] if hello["acked"] < copy else []
        replies += [late] if failing not in hello["deferred"] else []
        replies += [answer] if session.take_outgoing() else []
        receive(session, *replies, applied=2, generation=2)

        assert (read.done, read.error, bytes(out)) == (True, None, b"data"), at
        assert query.done, at
        assert session.log.outcomes[failing].result == 400, at
        assert session.take_deferred(0x600) == 400, at
        if not again:
            assert session.take_deferred(0x600) == 0
            break
