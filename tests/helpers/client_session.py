"""A client session under test, and the frames that drive it."""

from __future__ import annotations

from typing import Any

from outlast.session import wire
from outlast.session.calllog import CallLog
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.schema import Intent, Kind, ReplyKind
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
    return [codec.op for codec, _, _ in wire.CallStream(stream, payloads)]


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
