"""The declarative table of the messages that travel; calls are in `outlast.session.operations`.

`wire` packs and parses from both, ``docs/protocol.md`` is generated from them
(``tools/gen_protocol_doc.py``), and a test checks that numbers are never reused.

Numbers are forever: an operation or a message is only ever added, a record is only ever
extended at its end. `STREAM_FORMAT` grows when a stored call stream changes meaning; a
server reads the current format and the one before.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from outlast.session.operations import Field, parse_fields

#: Version of the link protocol; HELLO carries it and must match.
PROTOCOL_VERSION = 1
#: Version of stored call streams (client logs live longer than a server).
STREAM_FORMAT = 2

#: No frame is larger, so that a heartbeat never waits long behind one.
MAX_FRAME = 1 << 20  # 1 MiB
#: Copies up to this many bytes travel inside the call stream, larger ones as a frame.
INLINE_LIMIT = 4096  # bytes
#: Bytes that a client has sent and the worker not applied yet, unless WELCOME says otherwise.
DEFAULT_WINDOW = 32 << 20

#: Virtual handles are multiples of this (programs use the low bits as tags).
HANDLE_STEP = 16
#: First virtual handle; below 2**47, away from device and host addresses.
HANDLE_BASE = 0x0600_0000_0000
#: First handle that is free for clients; the ones before are constants.
HANDLE_FIRST = HANDLE_BASE + 0x1_0000
#: Handle of the primary context of device 0; device n adds ``n * HANDLE_STEP``.
PRIMARY_CONTEXT_BASE = HANDLE_BASE + 0x1000
#: Handle of the default memory pool of device 0; device n adds ``n * HANDLE_STEP``.
DEFAULT_POOL_BASE = HANDLE_BASE + 0x2000


class Kind(enum.IntEnum):
    """What a message is; the byte behind the magic in every header frame."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    ATTACH = 4
    ATTACHED = 5
    CALLS = 6
    REPLIES = 7
    PING = 8
    PONG = 9
    ACK = 10
    EPOCH_REQUEST = 11
    EPOCH = 12
    BYE = 13


class Intent(enum.IntEnum):
    """What a HELLO wants."""

    CREATE = 1
    RESUME = 2
    ADOPT = 3


class Wish(enum.IntFlag):
    """How a client would like to be attached; flags of HELLO."""

    NONE = 0
    #: Through the gateway, not directly to the worker.
    RELAY = 1
    #: To a new worker if an error has ended the contexts of the present one.
    FRESH = 2


class RecordFlag(enum.IntFlag):
    """Flags of a call record or a reply record."""

    NONE = 0
    #: The record's trailing bytes are the next payload frame of the message.
    PAYLOAD = 1


class ReplyKind(enum.IntEnum):
    """What a reply record is about."""

    #: Outcome of an answered call; number is its seq.
    OUTCOME = 0
    #: A one-way call failed; number is its seq, value its context. A later waiting call
    #: reports it, once.
    DEFERRED = 1
    #: Answer of a query; number is its qid.
    ANSWER = 2


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """Layout of one message's header frame."""

    kind: Kind
    sender: str
    fields: tuple[Field, ...]
    doc: str
    #: What follows the header frame.
    frames: str = ""


def _message(kind: Kind, sender: str, fields: str, doc: str, frames: str = "") -> MessageSpec:
    return MessageSpec(kind, sender, parse_fields(fields), doc, frames)


MESSAGES: dict[Kind, MessageSpec] = {
    spec.kind: spec
    for spec in (
        _message(
            Kind.HELLO,
            "client",
            "protocol:u16 stream_format:u16 cuda_version:u32 intent:u8 wishes:u8 generation:u64 "
            "log_head:u64 next_seq:u64 incarnation:b16 token:str session:str build:str",
            "First message of every attachment, to the gateway. `log_head` is the first seq the "
            "client still has, `generation` its last one (0: none).",
        ),
        _message(
            Kind.WELCOME,
            "gateway",
            "generation:u64 window:u64 secret:b32 heartbeat:f64 timeout:f64 endpoints:str "
            "server:str devices:json",
            "The attachment is granted. `endpoints` are the worker's own addresses, separated by "
            "spaces, in the order to try; empty: go on over this connection (relay).",
        ),
        _message(
            Kind.REFUSED,
            "gateway, worker",
            "error:u16 retry_after:f64 message:str",
            "Typed refusal: `error` is the code of a class in `outlast.errors`.",
        ),
        _message(
            Kind.ATTACH,
            "client",
            "generation:u64 secret:b32 replay_to:u64 acked:u64 ranges:ranges deferred:u64s",
            "First message on the data connection. Calls up to `replay_to` have been applied once "
            "before: until then this is replay. `acked` and `ranges` name every answered "
            "call whose reply has landed, `deferred` every one-way failure that has.",
        ),
        _message(
            Kind.ATTACHED,
            "worker",
            "generation:u64 applied:u64 recoverable:u64 restored_from:u64 inventory:json",
            "The client goes on from `applied + 1`. `restored_from` is the epoch's seq if the "
            "worker was restored since the last attachment; `inventory` is for adopters.",
            "the inventory in pieces, if it is too long for its field, which is {} then",
        ),
        _message(
            Kind.CALLS,
            "client",
            "generation:u64 first_seq:u64 count:u32 acked:u64",
            "A batch. `count` sequenced records begin at `first_seq`; 0 with queries alone.",
            "call stream in the same frame, then payload ...",
        ),
        _message(
            Kind.REPLIES,
            "worker",
            "generation:u64 applied:u64",
            "Replies, and the last seq issued to the device.",
            "reply stream in the same frame, then payload ...",
        ),
        _message(Kind.PING, "client, worker", "generation:u64 stamp:u64", "Are you there?"),
        _message(
            Kind.PONG,
            "client, worker",
            "generation:u64 stamp:u64 busy_seq:u64 busy_for:f64",
            "I am; `busy_seq` is the call the executor has been in for `busy_for` seconds.",
        ),
        _message(
            Kind.ACK,
            "client",
            "generation:u64 acked:u64 ranges:ranges deferred:u64s",
            "What has landed, when no batch carries it or it has gaps.",
        ),
        _message(Kind.EPOCH_REQUEST, "client", "generation:u64", "The log fills up: checkpoint."),
        _message(
            Kind.EPOCH,
            "worker",
            "generation:u64 seq:u64 recoverable:u64 error:str",
            "An epoch committed (the log may drop calls up to `recoverable`), or failed.",
        ),
        _message(
            Kind.BYE,
            "client, worker",
            "generation:u64 end:u8 reason:str",
            "The sender goes; `end` 1: the session itself ends. From a worker: it drains.",
        ),
    )
}
