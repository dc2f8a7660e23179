"""The control channel between the gateway and one worker: JSON messages over a socket pair.

It is also the proof of life: each side sees the other's death as end of file at once.
"""

from __future__ import annotations

import json
import socket
from multiprocessing.connection import Connection
from typing import Any

#: Longer messages are refused; journal records are cut into pieces far below it.
MAX_MESSAGE = 64 << 20  # bytes

Json = dict[str, Any]


class Channel:
    """One end of the channel.

    Only bytes travel (`Connection.send_bytes`): nothing is ever unpickled.
    """

    def __init__(self, fd: int) -> None:
        self._connection = Connection(fd)

    def fileno(self) -> int:
        """Return the descriptor to poll for incoming messages."""
        return self._connection.fileno()

    def send(self, message: Json) -> bool:
        """Send a message; return False if the other side is gone."""
        try:
            self._connection.send_bytes(json.dumps(message, separators=(",", ":")).encode())
        except OSError:
            return False
        return True

    def ready(self, timeout: float = 0.0) -> bool:
        """Return whether a message (or the end) can be read within ``timeout`` seconds."""
        try:
            return self._connection.poll(timeout)
        except OSError:
            return True

    def receive(self) -> Json | None:
        """Return the next message, None at the end of the channel."""
        try:
            message = json.loads(self._connection.recv_bytes(MAX_MESSAGE))
        except (EOFError, OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def replace(self, fd: int) -> None:
        """Go on over another socket: the process at the other end is a new one."""
        self._connection.close()
        self._connection = Connection(fd)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def channel_pair() -> tuple[Channel, int]:
    """Return one end and the descriptor of the other, to be inherited by a child process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours.detach()), theirs.detach()
