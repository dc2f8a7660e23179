"""What is to be linked, as it travels."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

#: ``CUjitInputType`` value, bytes of the name, bytes of the code.
_HEAD = struct.Struct("<IIQ")


class LinkInput(NamedTuple):
    """Code to be linked."""

    #: ``CUjitInputType`` value.
    kind: int
    #: What messages call it.
    name: str
    data: bytes


def pack(inputs: Iterable[LinkInput]) -> bytes:
    """Return inputs one behind the other."""
    parts = []
    for kind, name, data in inputs:
        text = name.encode(errors="replace")
        parts += [_HEAD.pack(kind, len(text), len(data)), text, data]
    return b"".join(parts)


def unpack(data: bytes) -> list[LinkInput] | None:
    """Return the inputs that `pack` has packed; None if the bytes are none."""
    inputs = []
    offset = 0
    while offset < len(data):
        name = offset + _HEAD.size
        if name > len(data):
            return None
        kind, name_length, length = _HEAD.unpack_from(data, offset)
        body = name + name_length
        offset = body + length
        if offset > len(data):
            return None
        text = data[name:body].decode(errors="replace")
        inputs.append(LinkInput(kind, text, data[body:offset]))
    return inputs
