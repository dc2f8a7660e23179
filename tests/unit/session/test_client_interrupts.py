"""Ctrl-C in the middle of a call: the call is in the log or it is not, and the rest is whole."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from helpers.client_session import attached_session, outcome, receive

from outlast.session import calllog, client, wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op

FILES = {client.__file__, calllog.__file__}
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
