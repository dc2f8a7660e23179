"""Field types of the wire and the codec of a message's field list."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from outlast.errors import ProtocolError
from outlast.session.operations import Field

#: Most ranges or numbers one acknowledgement may list.
MAX_LIST = 65_535

#: Fixed-size field types and their `struct` codes.
FIXED = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i32": "i",
    "f32": "f",
    "f64": "d",
    "b16": "16s",
    "b32": "32s",
}
#: Every field type with its layout, for the protocol page.
TYPES = {
    **{name: f"little-endian, {struct.calcsize('<' + code)} bytes" for name, code in FIXED.items()},
    "str": "u16 length, then UTF-8",
    "bytes": "the rest of the record, or the next payload frame",
    "ranges": "u16 count, then pairs of u64 (first, last)",
    "u64s": "u16 count, then u64 each",
    "json": "u32 length, then UTF-8 JSON",
}


class Layout:
    """Codec of a field list: one `struct` for the leading fixed fields, then the rest."""

    def __init__(self, fields: Sequence[Field]) -> None:
        fixed = 0
        while fixed < len(fields) and fields[fixed].type in FIXED:
            fixed += 1
        self.names = [f.name for f in fields]
        self.struct = struct.Struct("<" + "".join(FIXED[f.type] for f in fields[:fixed]))
        self.fixed = fixed
        self.variable = tuple(f.type for f in fields[fixed:])

    def pack(self, values: Sequence[Any]) -> bytes:
        """Return the fields' bytes."""
        if len(values) != len(self.names):
            raise ProtocolError(f"{len(self.names)} fields expected, {len(values)} given")
        try:
            parts = [self.struct.pack(*values[: self.fixed])]
        except struct.error as error:
            raise ProtocolError(f"a field is out of range: {error}") from error
        for kind, value in zip(self.variable, values[self.fixed :], strict=True):
            parts.append(_pack_variable(kind, value))
        return b"".join(parts)

    def parse(self, data: bytes, offset: int) -> dict[str, Any]:
        """Return the fields found from ``offset`` on, by name."""
        try:
            values: list[Any] = list(self.struct.unpack_from(data, offset))
            offset += self.struct.size
            for kind in self.variable:
                value, offset = _parse_variable(kind, data, offset)
                values.append(value)
        except (struct.error, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a message ends early or holds bad text: {error}") from error
        return dict(zip(self.names, values, strict=True))


def _pack_variable(kind: str, value: Any) -> bytes:
    if kind == "str":
        # An error's text may quote bytes of a path that are no text.
        text: bytes = value.encode(errors="backslashreplace")
        if len(text) > 0xFFFF:
            raise ProtocolError("a text field is longer than 65535 bytes")
        return struct.pack("<H", len(text)) + text
    if kind == "json":
        text = json.dumps(value, separators=(",", ":")).encode()
        return struct.pack("<I", len(text)) + text
    flat = [n for pair in value for n in pair] if kind == "ranges" else list(value)
    if len(value) > MAX_LIST:
        raise ProtocolError(f"more than {MAX_LIST} items in a list")
    try:
        return struct.pack(f"<H{len(flat)}Q", len(value), *flat)
    except struct.error as error:
        raise ProtocolError(f"a list holds what is no u64: {error}") from error


def _parse_variable(kind: str, data: bytes, offset: int) -> tuple[Any, int]:
    if kind in ("str", "json"):
        head = struct.Struct("<H" if kind == "str" else "<I")
        (length,) = head.unpack_from(data, offset)
        offset += head.size
        end = offset + length
        if end > len(data):
            raise ValueError("text reaches past the frame")
        text = data[offset:end].decode()
        return (text if kind == "str" else json.loads(text)), end
    (count,) = struct.unpack_from("<H", data, offset)
    offset += 2
    size = count * (2 if kind == "ranges" else 1)
    numbers = struct.unpack_from(f"<{size}Q", data, offset)
    offset += 8 * size
    if kind == "ranges":
        return list(zip(numbers[::2], numbers[1::2], strict=True)), offset
    return list(numbers), offset
