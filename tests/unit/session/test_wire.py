"""The wire: everything comes back as it was packed, and damage is a protocol error."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from outlast.errors import ProtocolError
from outlast.session import layout, wire
from outlast.session.operations import OPS, Field, Op, OpClass
from outlast.session.schema import INLINE_LIMIT, MESSAGES, PROTOCOL_VERSION, Kind, ReplyKind
from outlast.session.wire import Reply

U64 = st.integers(0, 2**64 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "u8": st.integers(0, 2**8 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "u64": U64,
    "i32": st.integers(-(2**31), 2**31 - 1),
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "b16": st.binary(min_size=16, max_size=16),
    "b32": st.binary(min_size=32, max_size=32),
    "str": st.text(max_size=40),
    "bytes": st.binary(max_size=40),
    "ranges": st.lists(st.tuples(U64, U64), max_size=5),
    "u64s": st.lists(U64, max_size=5),
    "json": JSON,
}


def values(fields: tuple[Field, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: VALUES[field.type] for field in fields})


@st.composite
def messages(draw: st.DrawFn) -> tuple[Kind, dict[str, Any]]:
    kind = draw(st.sampled_from(Kind))
    return kind, draw(values(MESSAGES[kind].fields))


@st.composite
def records(draw: st.DrawFn) -> tuple[Op, tuple[Any, ...], bytes | None, bool]:
    """An operation, its fixed fields, its bytes if it has any, and whether they are a frame."""
    op = draw(st.sampled_from(Op))
    drawn = draw(values(OPS[op].fields))
    fixed = tuple(drawn[f.name] for f in OPS[op].fields if f.type in layout.FIXED)
    data = next((drawn[f.name] for f in OPS[op].fields if f.type == "bytes"), None)
    return op, fixed, data, data is not None and draw(st.booleans())


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    kind = draw(st.sampled_from(ReplyKind))
    value = 0 if kind is ReplyKind.ANSWER else draw(U64)
    size = draw(st.sampled_from([0, 1, 40, INLINE_LIMIT, INLINE_LIMIT + 1]))
    return Reply(kind, draw(U64), draw(VALUES["i32"]), value, bytes(size))


def stream_of(calls: list[tuple[Op, tuple[Any, ...], bytes | None, bool]]) -> list[bytes]:
    """The call stream, then the payload frames."""
    stream = b"".join(
        wire.pack_record(op, *fixed, data=None if framed else data, payload=framed)
        for op, fixed, data, framed in calls
    )
    return [stream, *(data for _, _, data, framed in calls if framed and data is not None)]


# -- messages ------------------------------------------------------------------------------


@given(messages())
def test_every_message_comes_back_as_it_was_packed(message: tuple[Kind, dict[str, Any]]) -> None:
    kind, fields = message
    parsed = wire.parse_message([wire.pack_message(kind, **fields), b"behind"])
    assert parsed.kind is kind
    assert parsed.fields == fields
    assert bytes(parsed.frames[-1]) == b"behind"


@given(U64, U64, VALUES["u32"], U64, st.binary(max_size=60))
def test_the_hot_path_packs_and_parses_calls_like_any_message(
    generation: int, first: int, count: int, acked: int, stream: bytes
) -> None:
    fields = {"generation": generation, "first_seq": first, "count": count, "acked": acked}
    frame = wire.pack_calls(generation, first, count, acked, stream)
    assert frame == wire.pack_message(Kind.CALLS, **fields) + stream
    assert wire.parse_calls(frame) == (generation, first, count, acked)
    parsed = wire.parse_message([frame])
    assert parsed.fields == fields
    assert bytes(parsed.frames[0]) == stream


@given(U64, U64, st.binary(max_size=60))
def test_the_hot_path_packs_and_parses_replies_like_any_message(
    generation: int, applied: int, stream: bytes
) -> None:
    fields = {"generation": generation, "applied": applied}
    frame = wire.pack_replies(generation, applied, stream)
    assert frame == wire.pack_message(Kind.REPLIES, **fields) + stream
    assert wire.parse_replies(frame) == (generation, applied)
    assert bytes(wire.parse_message([frame]).frames[0]) == stream


@given(st.binary(max_size=80), st.booleans(), st.sampled_from(Kind))
@example(b"", False, Kind.HELLO)
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(
    data: bytes, with_prefix: bool, kind: Kind
) -> None:
    frame = wire.PREFIX.pack(wire.MAGIC, PROTOCOL_VERSION, kind) + data if with_prefix else data
    try:
        parsed = wire.parse_message([frame])
    except ProtocolError:
        return
    assert set(parsed.fields) == {field.name for field in MESSAGES[parsed.kind].fields}


@given(messages(), st.data())
def test_a_damaged_message_is_a_message_or_a_protocol_error(
    message: tuple[Kind, dict[str, Any]], data: st.DataObject
) -> None:
    frame = bytearray(wire.pack_message(message[0], **message[1]))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]
    try:
        parsed = wire.parse_message([bytes(frame)])
    except ProtocolError:
        return
    assert set(parsed.fields) == {field.name for field in MESSAGES[parsed.kind].fields}


@given(messages())
def test_a_message_cut_short_is_refused(message: tuple[Kind, dict[str, Any]]) -> None:
    frame = wire.pack_message(message[0], **message[1])
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            wire.parse_message([frame[:end]])


def test_a_message_needs_a_frame() -> None:
    with pytest.raises(ProtocolError, match="without frames"):
        wire.parse_message([])


def test_a_header_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not a header"):
        wire.parse_message([wire.pack_replies(1, 1, bytes(wire.MAX_HEADER))])


@pytest.mark.parametrize("kind", [Kind.PING, Kind.WELCOME, Kind.CALLS])
def test_another_version_is_refused(kind: Kind) -> None:
    frame = wire.PREFIX.pack(wire.MAGIC, PROTOCOL_VERSION + 1, kind) + bytes(200)
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}"):
        wire.parse_message([frame])
    assert wire.parse_calls(frame) is None
    assert wire.parse_replies(frame) is None


def test_a_refusal_is_understood_across_versions() -> None:
    frame = bytearray(wire.pack_message(Kind.REFUSED, error=2, retry_after=0.0, message="no"))
    frame[2] = PROTOCOL_VERSION + 1
    assert wire.parse_message([bytes(frame)])["error"] == 2


def test_nested_json_beyond_reason_is_refused() -> None:
    text = b"[" * 100_000
    header = wire.pack_message(
        Kind.ATTACHED, generation=1, applied=1, recoverable=0, restored_from=0, inventory={}
    )
    frame = header[:-6] + struct.pack("<I", len(text)) + text
    with pytest.raises(ProtocolError):
        wire.parse_message([frame])


@pytest.mark.parametrize(
    "fields",
    [
        {"generation": 1},
        {"generation": 1, "stamp": 1, "more": 1},
        {"generation": -1, "stamp": 1},
        {"generation": 2**64, "stamp": 1},
        {"generation": "1", "stamp": 1},
    ],
)
def test_a_message_with_wrong_fields_is_not_packed(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        wire.pack_message(Kind.PING, **fields)


@pytest.mark.parametrize("ranges", [[(0, 2**64)], [(-1, 2)], [(1, 2)] * (layout.MAX_LIST + 1)])
def test_a_list_out_of_range_is_not_packed(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError):
        wire.pack_message(Kind.ACK, generation=1, acked=0, ranges=ranges, deferred=[])


def test_the_longest_lists_travel() -> None:
    ranges, deferred = [(1, 2)] * layout.MAX_LIST, list(range(layout.MAX_LIST))
    frame = wire.pack_message(Kind.ACK, generation=1, acked=0, ranges=ranges, deferred=deferred)
    parsed = wire.parse_message([frame])
    assert parsed["ranges"] == ranges
    assert parsed["deferred"] == deferred


def test_text_that_is_too_long_is_not_packed() -> None:
    with pytest.raises(ProtocolError, match="65535"):
        wire.pack_message(Kind.REFUSED, error=1, retry_after=0.0, message="x" * 65_536)


def test_text_that_quotes_undecodable_bytes_can_be_packed() -> None:
    frame = wire.pack_message(Kind.REFUSED, error=1, retry_after=0.0, message="in \udcff/")
    assert wire.parse_message([frame])["message"] == r"in \udcff/"


# -- call records --------------------------------------------------------------------------


@given(st.lists(records(), max_size=6))
def test_a_call_stream_comes_back_as_it_was_packed(
    calls: list[tuple[Op, tuple[Any, ...], bytes | None, bool]],
) -> None:
    stream, *payloads = stream_of(calls)
    parsed = list(wire.CallStream(stream, payloads))
    assert [codec.op for codec, _, _ in parsed] == [op for op, *_ in calls]
    assert [args for _, args, _ in parsed] == [fixed for _, fixed, _, _ in calls]
    got = [None if data is None else bytes(data) for *_, data in parsed]
    assert got == [data for _, _, data, _ in calls]


@given(st.lists(records(), max_size=6))
def test_a_stored_stream_is_split_at_its_records(
    calls: list[tuple[Op, tuple[Any, ...], bytes | None, bool]],
) -> None:
    stream = stream_of(calls)[0]
    parts = list(wire.split_stream(stream))
    assert b"".join(part for part, _ in parts) == stream
    classes = (OpClass.ONE_WAY, OpClass.ANSWERED)
    assert [sequenced for _, sequenced in parts] == [OPS[op].cls in classes for op, *_ in calls]


@given(st.binary(max_size=120), st.lists(st.binary(max_size=8), max_size=2))
def test_arbitrary_bytes_are_a_call_stream_or_a_protocol_error(
    data: bytes, payloads: list[bytes]
) -> None:
    try:
        parsed = list(wire.CallStream(data, payloads))
    except ProtocolError:
        return
    assert data or not parsed


@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_a_damaged_call_stream_is_a_stream_or_a_protocol_error(
    calls: list[tuple[Op, tuple[Any, ...], bytes | None, bool]], data: st.DataObject
) -> None:
    stream, *payloads = stream_of(calls)
    damaged = bytearray(stream)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(damaged)))
    try:
        parsed = list(wire.CallStream(bytes(damaged[:end]), payloads))
    except ProtocolError:
        return
    assert all(isinstance(codec.op, Op) for codec, _, _ in parsed)


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown operation 65535"):
        list(wire.CallStream(wire.RECORD.pack(0xFFFF, 0, 0)))


def test_payload_frames_without_a_record_are_refused() -> None:
    with pytest.raises(ProtocolError, match="payload frames without"):
        list(wire.CallStream(b"", [b"x"]))
    with pytest.raises(ProtocolError, match="payload frames without"):
        list(wire.iter_replies(b"", [b"x"]))


def test_a_missing_payload_frame_is_refused() -> None:
    record = wire.pack_record(Op.COPY_HTOD, 1, 0, 0, payload=True)
    with pytest.raises(ProtocolError, match="payload frame of COPY_HTOD is missing"):
        list(wire.CallStream(record))


@pytest.mark.parametrize(("args", "data"), [((1, 0), b""), ((2**64, 0, 0), b""), ((1, 0, 0), None)])
def test_a_record_with_wrong_arguments_is_not_packed(
    args: tuple[int, ...], data: bytes | None
) -> None:
    with pytest.raises(ProtocolError):
        wire.pack_record(Op.COPY_HTOD, *args, data=data)


def test_an_operation_without_bytes_takes_none() -> None:
    with pytest.raises(ProtocolError, match="takes no bytes"):
        wire.pack_record(Op.MEM_FREE, 1, data=b"x")


# -- replies -------------------------------------------------------------------------------


@given(st.lists(replies(), max_size=6))
def test_replies_come_back_as_they_were_packed(sent: list[Reply]) -> None:
    packed = [wire.pack_reply(reply, INLINE_LIMIT) for reply in sent]
    stream = b"".join(record for record, _ in packed)
    payloads = [payload for _, payload in packed if payload is not None]
    got = [reply._replace(data=bytes(reply.data)) for reply in wire.iter_replies(stream, payloads)]
    assert got == sent


def test_only_long_data_becomes_a_frame() -> None:
    def packed(size: int) -> Any:
        return wire.pack_reply(Reply(ReplyKind.OUTCOME, 1, 0, 0, bytes(size)), INLINE_LIMIT)[1]

    assert packed(INLINE_LIMIT) is None
    assert len(packed(INLINE_LIMIT + 1)) == INLINE_LIMIT + 1


@given(st.binary(max_size=120), st.lists(st.binary(max_size=8), max_size=2))
def test_arbitrary_bytes_are_replies_or_a_protocol_error(
    data: bytes, payloads: list[bytes]
) -> None:
    try:
        parsed = list(wire.iter_replies(data, payloads))
    except ProtocolError:
        return
    assert all(isinstance(reply.kind, ReplyKind) for reply in parsed)


@given(st.lists(replies(), min_size=1, max_size=3), st.data())
def test_damaged_replies_are_replies_or_a_protocol_error(
    sent: list[Reply], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(wire.pack_reply(reply, INLINE_LIMIT * 2)[0] for reply in sent))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(stream)))
    try:
        parsed = list(wire.iter_replies(bytes(stream[:end])))
    except ProtocolError:
        return
    assert all(isinstance(reply.kind, ReplyKind) for reply in parsed)


@given(st.sampled_from([op for op in Op if OPS[op].reply]), st.data())
def test_reply_fields_come_back_as_they_were_packed(op: Op, data: st.DataObject) -> None:
    drawn = data.draw(values(OPS[op].reply))
    fixed = [drawn[f.name] for f in OPS[op].reply if f.type in layout.FIXED]
    tail = [drawn[f.name] for f in OPS[op].reply if f.type not in layout.FIXED]
    assume(not any(isinstance(value, float) and math.isinf(value) for value in fixed))
    packed = wire.pack_fields(op, *fixed) + b"".join(tail)
    assert wire.unpack_reply(op, packed) == (*fixed, *tail)


def test_reply_fields_that_are_too_short_are_refused() -> None:
    with pytest.raises(ProtocolError, match="MEM_INFO is too short"):
        wire.unpack_reply(Op.MEM_INFO, bytes(15))
