"""One connection to a server process: a ZeroMQ DEALER that is never silently replaced.

A new TCP connection is a new attachment, so there is no reconnecting here. The connection is
read and written by the thread that uses it (`outlast.zmtp`): a thread in between, as libzmq
has it, would make a call that waits several times as long.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from outlast.messages import stay_in_cache
from outlast.session.schema import MAX_FRAME
from outlast.zmtp_socket import ZmtpSocket

#: Frames are at most 1 MiB; a header may hold a device table.
MAX_MESSAGE = 8 << 20
#: A message may have many frames: an inventory of a large session does.
MAX_TOTAL = 1 << 30
#: How long a receive tries again and again before it blocks. A thread that sleeps takes some 50 us
#: to come back, several times as long as a round trip of one that does not.
SPIN = 200e-6  # seconds
#: What the system may hold of bytes not read yet; 0: as it likes.
RECEIVE_BUFFER = 0

#: Lets another thread run: on few cores it may be the one that brings the answer.
_give_way = getattr(os, "sched_yield", partial(time.sleep, 0))

assert MAX_FRAME < MAX_MESSAGE


class Transport:
    """A data or gateway connection. One thread at a time, except for `wake`.

    Parameters
    ----------
    endpoint : str
        ``tcp://HOST:PORT``.

    Raises
    ------
    OSError
        The host is not known, or no connection can even be tried.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.last_sent = time.monotonic()
        self._socket = ZmtpSocket(
            _connecting(endpoint),
            b"DEALER",
            (b"ROUTER", b"DEALER"),
            MAX_MESSAGE,
            MAX_TOTAL,
            courier=True,
        )
        self._waker, self._wakee = socket.socketpair()
        self._waker.setblocking(False)
        self._wakee.setblocking(False)
        self._woken = False
        self._poller = select.poll()
        self._poller.register(self._wakee, select.POLLIN)
        self._interest = 0
        self._unread: list[list[Any]] = []

    @property
    def last_heard(self) -> float:
        """When anything came last, by `time.monotonic`."""
        return self._socket.last_heard

    @property
    def broken(self) -> str:
        """Why nothing more comes or goes; empty while the connection stands."""
        return self._socket.broken

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the network; every `poll` goes on with it."""
        return self._socket.is_sending

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message without blocking; large frames are sent from where they are."""
        self._socket.send(frames)
        self.last_sent = time.monotonic()

    def poll(self, timeout: float) -> tuple[list[list[Any]], bool]:
        """Wait for messages or `wake`, at most ``timeout`` seconds; 0 does not wait.

        Returns
        -------
        tuple
            The messages, and whether the connection still stands.
        """
        if self._unread:
            return self._read(), True
        if not self._socket.has_unsent and timeout and self._spin():
            return self._read(), True
        self._block(timeout)
        messages = self._read()
        return messages, bool(messages) or not self._socket.broken

    def unread(self, messages: list[list[Any]]) -> None:
        """Have the next poll return these messages first: they came with another one."""
        self._unread = messages

    def wake(self) -> None:
        """Make a `poll` under way return (from any thread)."""
        self._woken = True
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"\0")

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; what is unsent after ``linger`` seconds is dropped."""
        end = time.monotonic() + linger
        while self._socket.is_sending and (left := end - time.monotonic()) > 0:
            self._block(min(left, 0.01))
        self._socket.close()
        self._waker.close()
        self._wakee.close()

    def _spin(self) -> bool:
        receive, messages = self._socket.receive, self._socket.messages
        now, end = time.monotonic, time.monotonic() + SPIN
        while now() < end:
            if receive() and messages:
                return True
            if self._woken or self._socket.broken:
                return False
            _give_way()
        return False

    def _block(self, timeout: float) -> None:
        """Wait until something can be read or written, or `wake`."""
        connection = self._socket
        if connection.broken:
            return
        interest = select.POLLIN | (select.POLLOUT if connection.has_unsent else 0)
        if interest != self._interest:
            self._poller.register(connection, interest)
            self._interest = interest
        for descriptor, events in self._poller.poll(max(0, int(timeout * 1000))):
            if descriptor != connection.fileno():
                self._woken = False
                with contextlib.suppress(BlockingIOError):
                    self._wakee.recv(4096)
                continue
            if events & select.POLLOUT:
                connection.flush()
            if events & ~select.POLLOUT:
                connection.receive()

    def _read(self) -> list[list[Any]]:
        messages, self._unread = self._unread, []
        messages += self._socket.messages
        self._socket.messages.clear()
        return messages


def _connecting(endpoint: str) -> socket.socket:
    """Return a socket that is on the way to ``endpoint``."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    address = socket.getaddrinfo(host.strip("[]"), int(port), family, socket.SOCK_STREAM)[0][4]
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        stay_in_cache(connection, endpoint)
        if RECEIVE_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        with contextlib.suppress(BlockingIOError):
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
