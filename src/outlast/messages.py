"""What keeps the memory of messages warm, whoever moves them."""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING

from outlast import values

if TYPE_CHECKING:
    import zmq

#: Bytes that the system holds of what a socket sends within this machine. By itself it grows them
#: to megabytes, which the processor's caches lose again before the other end has read them.
LOCAL_SEND_BUFFER = 256 << 10
#: The same of a data connection. A whole piece of a copy, as the thread that sends it has more to
#: do between two calls than libzmq's has.
LOCAL_PIECE_BUFFER = 1 << 20

#: Just below the longest block that glibc lets teach it (DEFAULT_MMAP_THRESHOLD_MAX).
_LESSON = 31 << 20  # bytes


def stay_in_cache(link: socket.socket | zmq.Socket[bytes], endpoint: str) -> None:
    """Bound what is on its way at once if ``endpoint`` is on this machine; call before it is used.

    Over a real network the system knows better: there more has to be on its way.
    """
    if not values.is_loopback(endpoint):
        return
    if isinstance(link, socket.socket):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_PIECE_BUFFER)
    else:
        link.sndbuf = LOCAL_SEND_BUFFER


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
