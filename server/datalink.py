"""The worker's data socket: a ROUTER that the main thread owns and the pulse thread may borrow.

One lock guards the socket. The main thread holds it while it waits and moves frames, not
while it executes; so the pulse thread gets it exactly when a call takes long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from typing import Any

import zmq

from outlast.session import wire
from outlast.session.schema import MAX_FRAME, Kind

#: A message may have many payload frames of `MAX_FRAME` bytes, each checked on its own.
MAX_MESSAGE = MAX_FRAME + (64 << 10)
#: Messages taken from the socket before the executor gets its turn.
READ_BURST = 256
#: Messages libzmq may queue for one peer; more wait in our own, bounded queue.
SEND_QUEUE = 64
#: How soon a full queue is tried again.
RETRY = 0.005  # seconds


class DataLink:
    """ROUTER socket, wake-up pair and liveness of peers.

    Parameters
    ----------
    device_fd : int
        Becomes readable when device work that somebody waits for is done.
    heartbeat, timeout : float
        Seconds of silence after which a peer is pinged, and given up.
    """

    def __init__(self, device_fd: int, heartbeat: float, timeout: float) -> None:
        self.heartbeat = heartbeat
        self.timeout = timeout
        #: Messages read and not yet handled: (peer, frames).
        self.messages: deque[tuple[bytes, list[bytes]]] = deque()
        self._device_fd = device_fd
        self._lock = threading.Lock()
        self._heard: dict[bytes, float] = {}
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.router_mandatory = 1
        self._socket.maxmsgsize = MAX_MESSAGE
        self._socket.sndhwm = SEND_QUEUE
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoints = [f"tcp://127.0.0.1:{port}"]
        self._waker, self._wakee = socket.socketpair()
        self._waker.setblocking(False)
        self._wakee.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakee, zmq.POLLIN)
        self._poller.register(device_fd, zmq.POLLIN)
        #: What a peer's full queue has not taken yet; the reply cache bounds it.
        self._backlog: deque[tuple[bytes, list[Any]]] = deque()

    # -- main thread ---------------------------------------------------------------------------

    def receive(self, timeout: float) -> None:
        """Wait for anything to happen, at most ``timeout`` seconds, and read what there is."""
        with self._lock:
            if self._backlog:
                self._retry()
                timeout = min(timeout, RETRY)
            self._read()
            if not self.messages:
                events = dict(self._poller.poll(int(timeout * 1000)))
                if self._wakee.fileno() in events:
                    self._drain_wakee()
                if self._device_fd in events:
                    os.read(self._device_fd, 8)
                if self._socket in events:
                    self._read()

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """Send to a peer without ever blocking; False if it is gone.

        What a slow peer does not take is kept and tried again, in order.
        """
        with self._lock:
            return self._send(peer, frames)

    def heard(self, peer: bytes) -> None:
        """Forget other peers and what was meant for them: this one is attached now."""
        self._backlog.clear()
        self._heard = {peer: time.monotonic()}

    def silence(self, peer: bytes | None) -> float:
        """Return the seconds since a peer was last heard."""
        return time.monotonic() - self._heard.get(peer or b"", 0.0)

    def silent(self, peer: bytes) -> bool:
        """Return whether a peer has been silent for so long that it counts as gone."""
        return self.silence(peer) > self.timeout

    # -- any thread ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `receive` return."""
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            self._waker.send(b"\0")

    def stand_in(self, generation: int, busy_seq: int, busy_for: float) -> None:
        """Answer heartbeats for the main thread if it is in a call; else do nothing."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._read()
            for peer in list(self._heard):
                pong = wire.pack_message(
                    Kind.PONG,
                    generation=generation,
                    stamp=0,
                    busy_seq=busy_seq,
                    busy_for=busy_for,
                )
                self._send(peer, [pong])
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the socket; unsent messages are dropped."""
        with self._lock:
            self._socket.close(0)
            self._context.term()
            self._waker.close()
            self._wakee.close()

    # -- inside --------------------------------------------------------------------------------

    def _read(self) -> None:
        for _ in range(READ_BURST):
            if len(self.messages) > READ_BURST:
                return
            try:
                peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if peer in self._heard:
                self._heard[peer] = time.monotonic()
            self.messages.append((peer, frames))

    def _send(self, peer: bytes, frames: list[Any]) -> bool:
        if self._backlog:
            self._backlog.append((peer, frames))
            return True
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.Again:
            self._backlog.append((peer, frames))
        except zmq.ZMQError:
            return False
        return True

    def _retry(self) -> None:
        backlog, self._backlog = self._backlog, deque()
        for peer, frames in backlog:
            self._send(peer, frames)

    def _drain_wakee(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakee.recv(4096)
