"""Pack and parse frames from the tables in `session.schema`.

Every parse error is a `ProtocolError`; nothing here trusts a length it has not checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outlast.errors import ProtocolError
from outlast.session.layout import FIXED, Layout
from outlast.session.operations import OPS, Op, OpClass
from outlast.session.schema import MESSAGES, PROTOCOL_VERSION, Kind, RecordFlag, ReplyKind

MAGIC = b"OL"
PREFIX = struct.Struct("<2sBB")  # magic, protocol version, kind
RECORD = struct.Struct("<HHI")  # op, flags, length of the arguments
REPLY = struct.Struct("<QHHiI")  # number, kind, flags, result, length of the rest
_U64 = struct.Struct("<Q")

#: Longest header frame; only WELCOME's device table comes near.
MAX_HEADER = 8 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One parsed message: its kind, its header fields, and what follows them.

    `frames` are a CALLS' or REPLIES' stream (which travels behind the header in the first
    frame), then payload frames.
    """

    kind: Kind
    fields: dict[str, Any]
    frames: tuple[Any, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Reply(NamedTuple):
    """Outcome of a call as it travels and as it is logged."""

    kind: ReplyKind
    #: Seq of a call or number of a query.
    number: int
    #: ``CUresult`` value.
    result: int = 0
    #: Address of an allocation, digest of a module's description, context of a late error.
    value: int = 0
    #: The op's reply fields, packed.
    data: bytes | memoryview = b""


_LAYOUTS = {kind: Layout(spec.fields) for kind, spec in MESSAGES.items()}
_PREFIXES = {kind: PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind) for kind in Kind}
#: The two headers of the hot path, prefix included.
CALLS_HEADER = struct.Struct("<2sBBQQIQ")
REPLIES_HEADER = struct.Struct("<2sBBQQ")
_CALLS, _REPLIES = int(Kind.CALLS), int(Kind.REPLIES)
_CALLS_PREFIX, _REPLIES_PREFIX = _PREFIXES[Kind.CALLS], _PREFIXES[Kind.REPLIES]
#: Length of the header of the two kinds whose stream follows it in the same frame.
_STREAMED = {_CALLS: CALLS_HEADER.size, _REPLIES: REPLIES_HEADER.size}


def pack_message(kind: Kind, **fields: Any) -> bytes:
    """Return the header frame of a message.

    Raises
    ------
    ProtocolError
        A field is missing or out of range.
    """
    layout = _LAYOUTS[kind]
    if set(fields) != set(layout.names):
        raise ProtocolError(f"{kind.name} has the fields {layout.names}, not {sorted(fields)}")
    return _PREFIXES[kind] + layout.pack([fields[name] for name in layout.names])


def pack_calls(
    generation: int, first_seq: int, count: int, acked: int, stream: bytes = b""
) -> bytes:
    """Return the first frame of a CALLS message: header and call stream (hot path)."""
    return (
        CALLS_HEADER.pack(MAGIC, PROTOCOL_VERSION, _CALLS, generation, first_seq, count, acked)
        + stream
    )


def pack_replies(generation: int, applied: int, stream: bytes = b"") -> bytes:
    """Return the first frame of a REPLIES message: header and reply stream (hot path)."""
    return REPLIES_HEADER.pack(MAGIC, PROTOCOL_VERSION, _REPLIES, generation, applied) + stream


def pack_pong(generation: int, stamp: int, busy_seq: int = 0, busy_for: float = 0.0) -> bytes:
    """Return the answer to a PING: this process is there, and in which call for how long."""
    return pack_message(
        Kind.PONG, generation=generation, stamp=stamp, busy_seq=busy_seq, busy_for=busy_for
    )


def parse_calls(frame: bytes) -> tuple[int, int, int, int] | None:
    """Return generation, first seq, count and acked of a CALLS' first frame (hot path).

    None: it is no well-formed CALLS of this protocol version; `parse_message` says why.
    """
    if frame[:4] != _CALLS_PREFIX or len(frame) < CALLS_HEADER.size:
        return None
    return CALLS_HEADER.unpack_from(frame)[3:]


def parse_replies(frame: bytes) -> tuple[int, int] | None:
    """Return generation and applied of a REPLIES' first frame (hot path), else None."""
    if frame[:4] != _REPLIES_PREFIX or len(frame) < REPLIES_HEADER.size:
        return None
    return REPLIES_HEADER.unpack_from(frame)[3:]


def version_of(frames: Sequence[Any]) -> int | None:
    """Return the protocol version a message says it follows, None if it is not ours."""
    header = bytes(frames[0][:3]) if frames else b""
    return header[2] if len(header) == 3 and header[:2] == MAGIC else None


def parse_message(frames: Sequence[Any]) -> Message:
    """Parse a multipart message.

    Parameters
    ----------
    frames : sequence of bytes or zmq.Frame
        The header frame, then what follows it.

    Raises
    ------
    ProtocolError
        The header is not one of ours, or its fields do not fit.
    """
    if not frames:
        raise ProtocolError("a message without frames")
    header = bytes(frames[0])
    if len(header) < PREFIX.size or len(header) > MAX_HEADER or header[:2] != MAGIC:
        raise ProtocolError("the first frame is not a header of this protocol")
    try:
        kind = Kind(header[3])
    except ValueError as error:
        raise ProtocolError(f"unknown message kind {header[3]}") from error
    # HELLO and REFUSED must be understood across versions, to refuse with a reason.
    if header[2] != PROTOCOL_VERSION and kind not in (Kind.HELLO, Kind.REFUSED):
        raise ProtocolError(f"protocol version {header[2]}, this side speaks {PROTOCOL_VERSION}")
    fields = _LAYOUTS[kind].parse(header, PREFIX.size)
    end = _STREAMED.get(kind)
    if end is None:
        return Message(kind, fields, tuple(frames[1:]))
    return Message(kind, fields, (memoryview(header)[end:], *frames[1:]))


# -- call records ------------------------------------------------------------------------


def is_sequenced(op: Op) -> bool:
    """Return whether calls of ``op`` have a seq (and so a place in the client's log)."""
    return OPS[op].cls in (OpClass.ONE_WAY, OpClass.ANSWERED)


class RecordCodec:
    """Layout of one op's record: fixed fields, then possibly trailing bytes."""

    __slots__ = (
        "cls",
        "has_data",
        "op",
        "sequenced",
        "size",
        "spec",
        "struct",
        "unpack_from",
        "whole",
    )

    def __init__(self, op: Op) -> None:
        spec = OPS[op]
        fixed = [f for f in spec.fields if f.type in FIXED]
        self.op = op
        self.spec = spec
        self.struct = struct.Struct("<" + "".join(FIXED[f.type] for f in fixed))
        self.has_data = len(fixed) < len(spec.fields)
        # At hand, because each call needs them.
        self.cls = spec.cls
        self.sequenced = is_sequenced(op)
        self.size = self.struct.size
        self.unpack_from = self.struct.unpack_from
        #: Head and fixed fields.
        self.whole = struct.Struct(RECORD.format + self.struct.format[1:])


RECORDS = {op: RecordCodec(op) for op in Op}
_BY_NUMBER: dict[int, RecordCodec] = {int(op): codec for op, codec in RECORDS.items()}
#: Bytes of a launch's record in front of its parameters.
LAUNCH_HEAD = RECORD.size + RECORDS[Op.LAUNCH].struct.size


def pack_record(op: Op, *args: int, data: bytes | None = None, payload: bool = False) -> bytes:
    """Return one call record.

    Parameters
    ----------
    op : Op
        The operation.
    *args : int
        Its fixed fields in table order.
    data : bytes, optional
        Its trailing bytes; None if it has none or if they travel as a frame.
    payload : bool
        The trailing bytes are the message's next payload frame.

    Raises
    ------
    ProtocolError
        An argument is missing or out of range.
    """
    codec = RECORDS[op]
    if not codec.has_data and data is None and not payload:
        try:
            return codec.whole.pack(op, 0, codec.size, *args)
        except struct.error as error:
            raise ProtocolError(f"{op.name}: {error}") from error
    tail = data or b""
    if codec.has_data == (data is None and not payload):
        raise ProtocolError(f"{op.name} {'needs' if codec.has_data else 'takes no'} bytes")
    try:
        fixed = codec.struct.pack(*args)
    except struct.error as error:
        raise ProtocolError(f"{op.name}: {error}") from error
    flags = RecordFlag.PAYLOAD if payload else RecordFlag.NONE
    return RECORD.pack(op, flags, len(fixed) + len(tail)) + fixed + tail


class CallStream:
    """The records of a call stream, one after another.

    Whoever knows what comes next may read it itself and move `offset` behind it.

    Parameters
    ----------
    stream : bytes
        The records.
    payloads : sequence
        The frames that they name.
    """

    __slots__ = ("_payloads", "_used", "begin", "offset", "stream")

    def __init__(self, stream: bytes, payloads: Sequence[Any] = ()) -> None:
        self.stream = stream
        #: Where the record in hand begins, and where the next one does.
        self.begin = self.offset = 0
        self._payloads = payloads
        self._used = 0

    def __iter__(self) -> Iterator[tuple[RecordCodec, tuple[Any, ...], Any]]:
        """Yield what `read` returns for each record, and `close`."""
        end = len(self.stream)
        while self.offset < end:
            yield self.read()
        self.close()

    def read(self) -> tuple[RecordCodec, tuple[Any, ...], Any]:
        """Return ``(codec, fixed arguments, trailing bytes or None)`` of the next record.

        Raises
        ------
        ProtocolError
            It is unknown, reaches past the stream, or lacks its payload frame.
        """
        stream, begin = self.stream, self.offset
        start = begin + RECORD.size
        if start > len(stream):
            raise ProtocolError("a call stream ends inside a record header")
        number, flags, length = RECORD.unpack_from(stream, begin)
        codec = _BY_NUMBER.get(number)
        if codec is None:
            raise ProtocolError(f"unknown operation {number}")
        stop = start + length
        if stop > len(stream) or length < codec.size:
            raise ProtocolError(f"the record of {codec.op.name} does not fit its length")
        self.begin, self.offset = begin, stop
        args = codec.unpack_from(stream, start)
        if not codec.has_data:
            if flags & 1 or length != codec.size:
                # Records are only extended by later versions, which this one does not speak.
                raise ProtocolError(f"{codec.op.name} carries bytes it must not have")
            return codec, args, None
        if not flags & 1:
            return codec, args, memoryview(stream)[start + codec.size : stop]
        if self._used == len(self._payloads):
            raise ProtocolError(f"the payload frame of {codec.op.name} is missing")
        self._used += 1
        return codec, args, self._payloads[self._used - 1]

    def close(self) -> None:
        """Note that all is read.

        Raises
        ------
        ProtocolError
            A payload frame is left.
        """
        if self._used != len(self._payloads):
            raise ProtocolError("payload frames without a record")


_SEQUENCED = {int(op) for op in Op if is_sequenced(op)}


def split_stream(stream: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield each record's bytes and whether it is sequenced (for a stored, trusted stream)."""
    offset = 0
    while offset < len(stream):
        number, _, length = RECORD.unpack_from(stream, offset)
        end = offset + 8 + length
        yield stream[offset:end], number in _SEQUENCED
        offset = end


# -- reply records -----------------------------------------------------------------------

_REPLY_KINDS = {int(kind): kind for kind in ReplyKind}
_ANSWER = ReplyKind.ANSWER
_REPLY_WITH_VALUE = struct.Struct(REPLY.format + "Q")
_REPLY_STRUCTS = {
    op: struct.Struct("<" + "".join(FIXED[f.type] for f in spec.reply if f.type in FIXED))
    for op, spec in OPS.items()
}


def pack_reply(reply: Reply, inline_limit: int) -> tuple[bytes, Any | None]:
    """Return a reply's record and, for long data, the payload frame it names."""
    kind, number, result, value, data = reply
    size = len(data)
    if size > inline_limit:
        tail = b"" if kind == _ANSWER else _U64.pack(value)
        return REPLY.pack(number, kind, RecordFlag.PAYLOAD, result, len(tail)) + tail, data
    if kind == _ANSWER:
        head = REPLY.pack(number, kind, 0, result, size)
    else:
        head = _REPLY_WITH_VALUE.pack(number, kind, 0, result, _U64.size + size, value)
    return head + data if size else head, None


def iter_replies(
    stream: bytes | memoryview, payloads: Sequence[Any] = (), offset: int = 0
) -> Iterator[Reply]:
    """Yield each reply of a reply stream that begins at ``offset``.

    Raises
    ------
    ProtocolError
        A reply reaches past the stream or lacks its payload frame.
    """
    size, head = len(stream), REPLY.size
    next_payload = 0
    while offset < size:
        body = offset + head
        if body > size:
            raise ProtocolError("a reply stream ends inside a reply")
        number, kind, flags, result, length = REPLY.unpack_from(stream, offset)
        known = _REPLY_KINDS.get(kind)
        if known is None:
            raise ProtocolError(f"unknown reply kind {kind}")
        offset = body + length
        if offset > size:
            raise ProtocolError("a reply does not fit its length")
        value = 0
        if known is not _ANSWER:
            if length < _U64.size:
                raise ProtocolError("a reply does not fit its length")
            (value,) = _U64.unpack_from(stream, body)
            body += _U64.size
        data: Any = b"" if body == offset else memoryview(stream)[body:offset]
        if flags & 1:
            if next_payload >= len(payloads):
                raise ProtocolError("the payload frame of a reply is missing")
            data = payloads[next_payload]
            next_payload += 1
        yield Reply(known, number, result, value, data)
    if next_payload != len(payloads):
        raise ProtocolError("payload frames without a reply")


def pack_fields(op: Op, *values: Any) -> bytes:
    """Return an op's fixed reply fields, packed."""
    return _REPLY_STRUCTS[op].pack(*values)


def unpack_reply(op: Op, data: bytes | memoryview) -> tuple[Any, ...]:
    """Return an op's reply fields; a trailing ``bytes`` field comes last.

    Raises
    ------
    ProtocolError
        The data is shorter than the fields.
    """
    codec = _REPLY_STRUCTS[op]
    try:
        fixed = codec.unpack_from(data)
    except struct.error as error:
        raise ProtocolError(f"the reply of {op.name} is too short") from error
    if any(f.type == "bytes" for f in OPS[op].reply):
        return (*fixed, bytes(data[codec.size :]))
    return fixed
