"""Where a worker waits for a new gateway once its own is gone: a socket in the state folder."""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.server.unix_sockets import listen, peer_of

Json = dict[str, Any]

#: Of the file beside a session's lock.
DOOR_SUFFIX = ".sock"
#: A worker introduces itself with at most so many bytes; a device table is a few KiB.
MAX_INTRODUCTION = 256 << 10
#: What it says at least. Another version's may be another; that worker ends with its lease.
_SAID = {
    "session": str,
    "token": int,
    "endpoints": list,
    "devices": list,
    "version": str,
    "device": str,
    "provider": str,
}
_LENGTH = struct.Struct("<I")


class Doorstep:
    """A worker's socket; only processes of the same user get in.

    Parameters
    ----------
    path : Path
        Where it is found; what lies there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = listen(path, socket.SOCK_STREAM)

    def accept(self, timeout: float) -> socket.socket | None:
        """Return the connection of a new gateway; None if none comes in time."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return None
        with suppress(OSError):
            connection, _ = self._socket.accept()
            if peer_of(connection)[1] == os.getuid():
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close the socket and remove it."""
        self._socket.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def introduce(connection: socket.socket, introduction: Json, page: int) -> None:
    """Tell a new gateway who this worker is, and give it the shared page.

    Raises
    ------
    OSError
        It is gone, or does not read.
    """
    data = json.dumps(introduction, separators=(",", ":")).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], [page])
    connection.sendall(data)


def hear(connection: socket.socket) -> tuple[Json, int]:
    """Return a worker's introduction and the descriptor of its page.

    Raises
    ------
    OSError
        It does not come (in time), or is malformed.
    """
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    try:
        if len(head) != _LENGTH.size or len(fds) != 1:
            raise OSError("no introduction came")
        (length,) = _LENGTH.unpack(head)
        if length > MAX_INTRODUCTION:
            raise OSError(f"an introduction of {length} bytes")
        introduction = json.loads(_read(connection, length))
        if not isinstance(introduction, dict):
            raise OSError("an introduction that is no object")
        for name, kind in _SAID.items():
            if not isinstance(introduction.get(name), kind):
                raise OSError(f"an introduction without a usable {name!r}")
        if os.fstat(fds[0]).st_size < mmap.PAGESIZE:
            raise OSError("a page that is too small")
    except (OSError, ValueError) as error:
        for fd in fds:
            os.close(fd)
        raise OSError(str(error)) from error
    return introduction, fds[0]


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise OSError("an introduction that ends early")
        data += piece
    return data
