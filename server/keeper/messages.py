"""Messages to and from the keeper: JSON with descriptors, over a sequenced-packet socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

Json = dict[str, Any]

#: Descriptors that the kernel lets one message carry are 253.
FDS_PER_MESSAGE = 200
#: Bytes of one message; what is larger travels as a descriptor.
MAX_BYTES = 64 << 10
#: File name of the socket in a server's state folder.
SOCKET_NAME = "keeper.sock"


class BadMessage(ValueError):
    """What came is no message of this protocol."""


def send(connection: socket.socket, message: Json, fds: Sequence[int] = ()) -> None:
    """Send one message, in as many packets as its descriptors need.

    Raises
    ------
    OSError
        The other side is gone.
    """
    first, rest = fds[:FDS_PER_MESSAGE], fds[FDS_PER_MESSAGE:]
    data = json.dumps({**message, "more_fds": len(rest)}, separators=(",", ":")).encode()
    socket.send_fds(connection, [data], first)
    while rest:
        first, rest = rest[:FDS_PER_MESSAGE], rest[FDS_PER_MESSAGE:]
        socket.send_fds(connection, [b"{}"], first)


def receive(connection: socket.socket) -> tuple[Json, list[int]] | None:
    """Return the next message and its descriptors, which the caller has to close.

    Returns
    -------
    tuple or None
        None at the end of the connection.

    Raises
    ------
    BadMessage
        It is malformed; its descriptors are closed.
    OSError
        The connection broke or timed out.
    """
    data, fds, flags, _ = socket.recv_fds(connection, MAX_BYTES, FDS_PER_MESSAGE)
    if not data:
        close_all(fds)
        return None
    try:
        message = _parse(data, flags)
        missing = message.pop("more_fds", 0)
        if not isinstance(missing, int) or missing < 0:
            raise BadMessage("more_fds is not a count")
        while missing > 0:
            more_data, more, flags, _ = socket.recv_fds(connection, MAX_BYTES, FDS_PER_MESSAGE)
            fds += more
            if not more or not more_data or flags & socket.MSG_CTRUNC:
                raise BadMessage(f"{missing} descriptors are missing")
            missing -= len(more)
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors; one that is closed already does not matter."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _parse(data: bytes, flags: int) -> Json:
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise BadMessage("a message is cut short")
    try:
        message = json.loads(data)
    except ValueError as error:
        raise BadMessage("a message is not JSON") from error
    if not isinstance(message, dict):
        raise BadMessage("a message is not an object")
    return message
