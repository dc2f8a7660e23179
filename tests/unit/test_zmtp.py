"""ZMTP: what is encoded is decoded, however it is cut; and nothing else is taken."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import zmtp
from outlast.errors import ProtocolError

LIMIT = 1 << 20
FRAMES = st.lists(
    st.one_of(st.binary(max_size=300), st.integers(250, 70_000).map(lambda n: b"x" * n)),
    min_size=1,
    max_size=4,
)


def decoder(kinds: tuple[bytes, ...] = (b"DEALER",)) -> zmtp.Decoder:
    return zmtp.Decoder(kinds, LIMIT, 2 * LIMIT)


def feed(to: zmtp.Decoder, data: bytes, steps: list[int] | None = None) -> None:
    """Put bytes in, in steps of these lengths, over and over."""
    steps = steps or [1 << 20]
    turn = 0
    while data:
        space = to.space()
        count = min(len(space), len(data), steps[turn % len(steps)])
        space[:count] = data[:count]
        to.take(count)
        data = data[count:]
        turn += 1


def greeted() -> zmtp.Decoder:
    made = decoder()
    feed(made, zmtp.opening(b"DEALER"))
    assert made.ready
    return made


@given(
    messages=st.lists(FRAMES, max_size=5),
    steps=st.lists(st.integers(1, 50_000), min_size=1, max_size=5),
)
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(
    messages: list[list[bytes]], steps: list[int]
) -> None:
    stream = zmtp.opening(b"DEALER")
    for frames in messages:
        stream += b"".join(map(bytes, zmtp.encode(frames)))
    to = decoder()
    feed(to, stream, steps)

    assert [[bytes(frame) for frame in frames] for frames in to.messages] == messages
    for frames in to.messages:
        assert isinstance(frames[0], bytes)
        assert all(isinstance(frame, memoryview) for frame in frames[1:])


def test_long_frames_are_sent_from_where_they_are() -> None:
    payload = memoryview(bytes(1 << 20))
    pieces = zmtp.encode([b"head", payload, b"tail"])
    assert sum(piece is payload for piece in pieces) == 1
    assert len(pieces) == 3


def test_a_long_frame_outlives_the_ones_behind_it() -> None:
    to = greeted()
    feed(to, b"".join(map(bytes, zmtp.encode([b"1", b"a" * LIMIT]))))
    kept = to.messages.popleft()[1]
    for _ in range(50):
        feed(to, b"".join(map(bytes, zmtp.encode([b"2", b"b" * LIMIT]))))
        to.messages.clear()
    assert bytes(kept) == b"a" * LIMIT


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x7e", "does not speak ZMTP"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "ZMTP 1"),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE", "CURVE"),
    ],
)
def test_who_does_not_greet_is_told_so(said: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        feed(decoder(), said)


def test_newer_versions_are_spoken_to() -> None:
    to = decoder()
    opening = zmtp.opening(b"DEALER")
    feed(to, opening[:11] + b"\x01" + opening[12:])
    assert to.ready


def test_only_the_right_kinds_of_socket_are_spoken_to() -> None:
    with pytest.raises(ProtocolError, match="'PUB' socket"):
        feed(decoder((b"DEALER", b"ROUTER")), zmtp.opening(b"PUB"))


def test_a_message_before_ready_is_refused() -> None:
    with pytest.raises(ProtocolError, match="before READY"):
        feed(decoder(), zmtp.opening(b"DEALER")[:64] + b"\0\x01x")


@pytest.mark.parametrize("flags", [0x08, 0xFF, 0x05])
def test_unknown_flags_are_refused(flags: int) -> None:
    with pytest.raises(ProtocolError, match="flags"):
        feed(greeted(), bytes((flags, 1)) + b"x" * 20)


@pytest.mark.parametrize("size", [LIMIT + 1, 2**63, 2**64 - 1])
def test_frames_beyond_the_limit_are_refused_before_they_come(size: int) -> None:
    with pytest.raises(ProtocolError, match="are allowed"):
        feed(greeted(), b"\x02" + size.to_bytes(8, "big"))


def test_messages_of_frames_without_end_are_refused() -> None:
    to = greeted()
    part = b"\x03" + LIMIT.to_bytes(8, "big") + bytes(LIMIT)
    feed(to, part + part)
    with pytest.raises(ProtocolError, match="a message of more"):
        feed(to, part)


def test_an_error_of_the_peer_is_passed_on() -> None:
    with pytest.raises(ProtocolError, match="no entry"):
        feed(decoder(), zmtp.opening(b"DEALER")[:64] + b"\x04\x0f\x05ERROR\x08no entry")


@pytest.mark.parametrize("command", [b"\x04PING\0\0hello", b"\x09SUBSCRIBE", b""])
def test_other_commands_are_nothing(command: bytes) -> None:
    to = greeted()
    feed(to, bytes((4, len(command))) + command + b"\0\x02hi")
    assert [bytes(frames[0]) for frames in to.messages] == [b"hi"]


def test_a_ready_that_is_cut_off_is_refused() -> None:
    body = b"\x05READY\x0bSocket-Type\0\0\0\xffDEALER"
    with pytest.raises(ProtocolError, match="cut off"):
        feed(decoder(), zmtp.opening(b"DEALER")[:64] + bytes((4, len(body))) + body)


@given(st.binary(max_size=400))
def test_garbage_is_refused_or_waited_out_and_never_worse(data: bytes) -> None:
    for to in (decoder(), greeted()):
        with contextlib.suppress(ProtocolError):
            feed(to, data)
        # Nothing counts as a message before the peer has said what it is, nor more than came.
        assert to.ready or not to.messages
        assert sum(len(frame) for frames in to.messages for frame in frames) <= len(data)
