"""Multipart messages off a ZeroMQ socket, without another copy of their payloads."""

from __future__ import annotations

import functools
from typing import Any

import zmq

from outlast import values

Frame = bytes | memoryview

#: Bytes that the system holds of what a socket sends within this machine. By itself it grows them
#: to megabytes, which the processor's caches lose again before the other end has read them.
LOCAL_SEND_BUFFER = 256 << 10

#: Just below the longest block that glibc lets teach it (DEFAULT_MMAP_THRESHOLD_MAX).
_LESSON = 31 << 20  # bytes


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


def stay_in_cache(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bound what is on its way at once if ``endpoint`` is on this machine; call before it is used.

    Over a real network the system knows better: there more has to be on its way.
    """
    if values.is_loopback(endpoint):
        socket.sndbuf = LOCAL_SEND_BUFFER


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep the memory of large frames for the next ones.

    Otherwise glibc gives it back when a frame is freed, and gets it again, a page fault for
    every 4 KiB, when the next one comes. Once it has seen a long block come and go, it maps
    shorter ones no longer by themselves and keeps twice as much free memory (mallopt(3) on
    M_MMAP_THRESHOLD). Programs that use large arrays teach it the same. Nothing is written to
    the block, so it costs no memory; other C libraries take no notice.
    """
    bytes(_LESSON)
