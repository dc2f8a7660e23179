"""Multipart messages off a ZeroMQ socket, without another copy of their payloads."""

from __future__ import annotations

from typing import Any

import zmq

Frame = bytes | memoryview


def receive(socket: zmq.Socket[bytes], flags: int = 0, short: int = 1) -> list[Any]:
    """Return the frames of one message.

    Parameters
    ----------
    socket : zmq.Socket
        Where it comes from.
    flags : int
        ``zmq.NOBLOCK``, or 0 to wait.
    short : int
        So many frames come as ``bytes``. What follows is payload and comes as views of
        libzmq's own memory: a mebibyte is not copied once more, while for a few bytes the
        copy would be cheaper.

    Raises
    ------
    zmq.Again
        There is none (in time).
    """
    frames: list[Frame] = [socket.recv(flags)]
    while socket.getsockopt(zmq.RCVMORE):
        if len(frames) < short:
            frames.append(socket.recv())
        else:
            frames.append(socket.recv(copy=False).buffer)
    return frames
