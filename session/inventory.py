"""What a session holds, for the client that adopts it: in ATTACHED, or in frames behind it."""

from __future__ import annotations

import json
from typing import Any

from outlast.errors import ProtocolError
from outlast.session.schema import MAX_FRAME
from outlast.session.wire import Message

#: A longer one travels in frames; the rest of the header fits into what is left.
INLINE_LIMIT = MAX_FRAME // 2  # bytes


def pack(inventory: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Return what the header's field holds, and the frames that follow it."""
    text = json.dumps(inventory, separators=(",", ":")).encode()
    if len(text) <= INLINE_LIMIT:
        return inventory, []
    return {}, [text[i : i + MAX_FRAME] for i in range(0, len(text), MAX_FRAME)]


def unpack(attached: Message) -> dict[str, Any]:
    """Return the inventory that an ATTACHED carries.

    Raises
    ------
    ProtocolError
        It cannot be read.
    """
    inventory = attached["inventory"]
    try:
        if attached.frames:
            inventory = json.loads(b"".join(attached.frames))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the inventory of a session cannot be read: {error}") from error
    if not isinstance(inventory, dict):
        raise ProtocolError("the inventory of a session is no object")
    return inventory
