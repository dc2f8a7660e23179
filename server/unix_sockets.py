"""Unix sockets in folders of any depth, and who is at their other end."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
BACKLOG = 64


def listen(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Return a listening socket for this user alone; what lies at ``path`` is replaced.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        with _address(path) as address:
            listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def connect(path: Path, kind: socket.SocketKind, timeout: float) -> socket.socket:
    """Return a connection whose operations take at most ``timeout`` seconds each.

    Raises
    ------
    OSError
        Nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        connection.settimeout(timeout)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that is at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give an address by the folder's descriptor: a path may be longer than an address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
