"""One connection to a server process: a DEALER that is never silently replaced.

A new TCP connection is a new attachment, so libzmq's own reconnecting is off, and its
socket monitor tells at once when the connection is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from outlast.messages import receive, stay_in_cache
from outlast.session.schema import MAX_FRAME

#: Frames are at most 1 MiB; a header may hold a device table.
MAX_MESSAGE = 8 << 20
#: Longest blocking receive: how soon a broken connection is noticed.
SLICE = 0.05  # seconds
#: How long a receive tries again and again before it blocks. A thread that sleeps takes some 50 us
#: to come back, as long as a whole round trip of one that does not.
SPIN = 200e-6  # seconds
#: Messages read before their handling gets its turn.
BURST = 256

_GONE = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

#: As a plain number: the operators of flag enums cost half a microsecond.
_READABLE = int(zmq.POLLIN)

#: Lets another thread run: on few cores it may be the one that brings the answer.
_give_way = getattr(os, "sched_yield", partial(time.sleep, 0))

assert MAX_FRAME < MAX_MESSAGE


class Transport:
    """A data or gateway connection. One thread at a time, except for `wake`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.endpoint = endpoint
        self.last_heard = time.monotonic()
        self.last_sent = self.last_heard
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = int(SLICE * 1000)
        self._socket.reconnect_ivl = -1
        self._socket.maxmsgsize = MAX_MESSAGE
        self._socket.ipv6 = int("[" in endpoint)
        stay_in_cache(self._socket, endpoint)
        self._monitor = self._socket.get_monitor_socket(_GONE)
        self._waker, self._wakee = socket.socketpair()
        self._waker.setblocking(False)
        self._wakee.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._wakee, zmq.POLLIN)
        self._unread: list[list[bytes]] = []
        self._socket.connect(endpoint)

    def send(self, frames: Sequence[Any]) -> bool:
        """Send a message without blocking; False if the queue is full."""
        try:
            if len(frames) == 1:
                self._socket.send(frames[0], zmq.NOBLOCK)
            else:
                # The log keeps the bytes, so large payloads are sent from where they are.
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self.last_sent = time.monotonic()
        return True

    def receive(self) -> tuple[list[list[bytes]], bool]:
        """Wait for a message, at most `SLICE`, deaf to `wake`.

        Blocking in the receive itself saves 20 us a round trip against polling; it is for a
        thread that no other thread has to interrupt.

        Returns
        -------
        tuple
            The messages, and whether the connection still stands.
        """
        if self._unread:
            return self._read(), True
        message = self._spin()
        if message is None:
            try:
                message = receive(self._socket)
            except zmq.Again:
                return [], not self._broken()
        self.last_heard = time.monotonic()
        return [message], True

    def _spin(self) -> list[Any] | None:
        look, now, end = self._socket.getsockopt, time.monotonic, time.monotonic() + SPIN
        while now() < end:
            if int(look(zmq.EVENTS)) & _READABLE:
                return receive(self._socket)
            _give_way()
        return None

    def poll(self, timeout: float) -> tuple[list[list[bytes]], bool]:
        """Wait for messages or `wake`, at most ``timeout`` seconds; 0 does not wait.

        Returns
        -------
        tuple
            The messages, and whether the connection still stands.
        """
        messages = self._read()
        if messages:
            return messages, True
        events = dict(self._poller.poll(max(0, int(timeout * 1000))))
        if self._wakee.fileno() in events:
            with contextlib.suppress(BlockingIOError):
                self._wakee.recv(4096)
        messages = self._read()
        if self._monitor in events and not messages:
            return self._read(), not self._broken()
        return messages, True

    def unread(self, messages: list[list[bytes]]) -> None:
        """Have the next receive return these messages first: they came with another one."""
        self._unread = messages

    def wake(self) -> None:
        """Make a `poll` under way return (from any thread)."""
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"\0")

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; what is unsent after ``linger`` seconds is dropped."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(int(linger * 1000))
        self._waker.close()
        self._wakee.close()

    def _broken(self) -> bool:
        """Return whether the monitor says that the connection is gone."""
        if not self._monitor.poll(0):
            return False
        recv_monitor_message(self._monitor, zmq.NOBLOCK)
        return True

    def _read(self) -> list[list[bytes]]:
        messages, self._unread = self._unread, []
        try:
            while len(messages) < BURST:
                messages.append(receive(self._socket, zmq.NOBLOCK))
        except zmq.Again:
            pass
        if messages:
            self.last_heard = time.monotonic()
        return messages
