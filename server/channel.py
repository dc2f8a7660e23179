"""The control channel between the gateway and one worker: JSON messages over a socket pair.

It is also the proof of life: each side sees the other's death as end of file at once. A
message goes behind its length, four bytes in network order. That is what
`multiprocessing.connection` writes; loading it would take a tenth of a worker's start.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from typing import Any

#: Longer messages are refused; journal records are cut into pieces far below it.
MAX_MESSAGE = 64 << 20  # bytes

Json = dict[str, Any]

_LENGTH = struct.Struct("!i")


class Channel:
    """One end of the channel; only JSON travels.

    Parameters
    ----------
    fd : int
        A connected stream socket that blocks; closed with the channel.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor to poll for incoming messages.

        Raises
        ------
        OSError
            The channel is closed.
        """
        if self._fd < 0:
            raise OSError("the channel is closed")
        return self._fd

    def send(self, message: Json) -> bool:
        """Send a message; return False if the other side is gone."""
        data = json.dumps(message, separators=(",", ":")).encode()
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        try:
            while rest:
                rest = rest[os.write(self.fileno(), rest) :]
        except OSError:
            return False
        return True

    def ready(self, timeout: float = 0.0) -> bool:
        """Return whether a message (or the end) can be read within ``timeout`` seconds."""
        poll = select.poll()  # not select(): a worker may have thousands of descriptors
        try:
            poll.register(self.fileno(), select.POLLIN)
            return bool(poll.poll(timeout * 1000))
        except OSError:
            return True

    def receive(self) -> Json | None:
        """Return the next message, None at the end of the channel."""
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            if not 0 <= length <= MAX_MESSAGE:
                return None
            message = json.loads(self._read(length))
        except (EOFError, OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = os.read(self.fileno(), min(length - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def replace(self, fd: int) -> None:
        """Go on over another socket: the process at the other end is a new one."""
        self.close()
        self._fd = fd

    def close(self) -> None:
        """Close this end."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def channel_pair() -> tuple[Channel, int]:
    """Return one end and the descriptor of the other, to be inherited by a child process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours.detach()), theirs.detach()
