"""One fixed example of every message, call record and reply, for the golden frames.

`python -m helpers.wire_examples` (from the tests folder) prints them as they are now. A
frame that is checked in never changes; only new ones are added to it.
"""

from __future__ import annotations

import json
from typing import Any

from outlast.session import layout, wire
from outlast.session.operations import OPS, Field, Op
from outlast.session.schema import MESSAGES, Kind, RecordFlag, ReplyKind
from outlast.session.wire import Reply

#: Distinct in every byte, so that a moved or swapped field shows.
_VALUES: dict[str, Any] = {
    "u8": 0xA1,
    "u16": 0xA1B2,
    "u32": 0xA1B2C3D4,
    "u64": 0xA1B2C3D4E5F60718,
    "i32": -0x1E2D3C4C,
    "f32": 1.5,
    "f64": -2.25,
    "b16": bytes(range(16)),
    "b32": bytes(range(32)),
    "str": "sitzung \u00e9",
    "bytes": b"payload",
    "ranges": [(3, 5), (9, 9)],
    "u64s": [7, 1 << 63],
    "json": {"a": [1, 2.5, "x"]},
}


def field_values(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return an example value per field; numbers differ from field to field."""
    values = {}
    for index, field in enumerate(fields):
        value = _VALUES[field.type]
        values[field.name] = (
            value ^ index if field.type[0] == "u" and field.type[1:].isdigit() else value
        )
    return values


def message(kind: Kind) -> bytes:
    """Return the example header of a message kind."""
    return wire.pack_message(kind, **field_values(MESSAGES[kind].fields))


def record(op: Op, payload: bool = False) -> bytes:
    """Return the example record of an operation."""
    values = field_values(OPS[op].fields)
    fixed = [
        v for f, v in zip(OPS[op].fields, values.values(), strict=True) if f.type in layout.FIXED
    ]
    has_data = len(fixed) < len(values)
    data = _VALUES["bytes"] if has_data and not payload else None
    return wire.pack_record(op, *fixed, data=data, payload=payload)


def reply_data(op: Op) -> bytes:
    """Return the example reply fields of an operation, packed."""
    fields = OPS[op].reply
    values = field_values(fields)
    fixed = [v for f, v in zip(fields, values.values(), strict=True) if f.type in layout.FIXED]
    tail = _VALUES["bytes"] if len(fixed) < len(fields) else b""
    return wire.pack_fields(op, *fixed) + tail


def replies() -> dict[str, bytes]:
    """Return an example of each kind of reply."""
    return {
        kind.name: wire.pack_reply(Reply(kind, 0x0102030405060708, -5, 0x1112, b"abc"), 4096)[0]
        for kind in ReplyKind
    }


def takes_payload(op: Op) -> bool:
    """Return whether an operation's bytes may travel as a frame."""
    return any(field.type == "bytes" for field in OPS[op].fields)


def frames() -> dict[str, dict[str, str]]:
    """Return all examples in hexadecimal, by section and name."""
    return {
        "messages": {kind.name: message(kind).hex() for kind in Kind},
        "records": {op.name: record(op).hex() for op in Op},
        "records with a payload frame": {
            op.name: record(op, payload=True).hex() for op in Op if takes_payload(op)
        },
        "reply fields": {op.name: reply_data(op).hex() for op in Op if OPS[op].reply},
        "replies": {name: data.hex() for name, data in replies().items()},
        "numbers": {
            **{f"Kind.{kind.name}": f"{int(kind):x}" for kind in Kind},
            **{f"Op.{op.name}": f"{int(op):x}" for op in Op},
            **{f"RecordFlag.{flag.name}": f"{int(flag):x}" for flag in RecordFlag},
        },
    }


if __name__ == "__main__":
    print(json.dumps(frames(), indent=1))
