"""The worker's data socket: a ROUTER that the main thread owns and the pulse thread may borrow.

One lock guards the socket. The main thread holds it while it waits and moves frames, not
while it executes; so the pulse thread gets it exactly when a call takes long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq

from outlast.messages import keep_freed_memory, receive, stay_in_cache
from outlast.session import wire
from outlast.session.schema import MAX_FRAME

if TYPE_CHECKING:
    from outlast.server.drivers.base import Driver

#: A message may have many payload frames of `MAX_FRAME` bytes, each checked on its own.
MAX_MESSAGE = MAX_FRAME + (64 << 10)
#: Messages read ahead of the executor.
READ_BURST = 256
#: Messages libzmq may queue for one peer; more wait in our own, bounded queue.
SEND_QUEUE = 64
#: How soon a full queue is tried again.
RETRY = 0.005  # seconds
#: Longest blocking receive.
SLICE = 0.25  # seconds
#: How long a receive behind a message tries again and again before it blocks: a thread that
#: sleeps takes some 50 us to come back. 0 never does.
SPIN = 100e-6  # seconds
#: Processors that it takes: on fewer, libzmq's threads need the one that it would hold.
SPIN_PROCESSORS = 4
#: Where it listens: a client on another machine comes through the gateway.
LOCAL = "tcp://127.0.0.1"
#: Routing id of our own wake-up messages.
WAKER = b"wake"

# As plain numbers: the operators of flag enums cost half a microsecond.
_READABLE = int(zmq.POLLIN)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class DataLink:
    """ROUTER socket, wake-up calls and liveness of peers.

    Parameters
    ----------
    driver : Driver
        Its descriptor becomes readable when device work that somebody waits for is done.
    heartbeat, timeout : float
        Seconds of silence after which a peer is pinged, and given up.
    """

    def __init__(self, driver: Driver, heartbeat: float, timeout: float) -> None:
        self.heartbeat = heartbeat
        self.timeout = timeout
        #: Messages read and not yet handled: (peer, frames).
        self.messages: deque[tuple[bytes, list[bytes]]] = deque()
        #: More could be read when last looked.
        self.more = False
        self._driver = driver
        self._lock = threading.Lock()
        self._spin = SPIN if len(os.sched_getaffinity(0)) >= SPIN_PROCESSORS else 0.0
        #: A message has come since the last wait, so the next one may be near.
        self._lively = False
        self._heard: dict[bytes, float] = {}
        keep_freed_memory()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.router_mandatory = 1
        self._socket.maxmsgsize = MAX_MESSAGE
        self._socket.sndhwm = SEND_QUEUE
        self._socket.rcvtimeo = int(min(SLICE, heartbeat) * 1000)
        self._socket.bind("inproc://wake")
        # First, so that no client can take its routing id.
        self._waker = self._context.socket(zmq.DEALER)
        self._waker.linger = 0
        self._waker.routing_id = WAKER
        self._waker.connect("inproc://wake")
        self._wake_lock = threading.Lock()
        stay_in_cache(self._socket, LOCAL)
        port = self._socket.bind_to_random_port(LOCAL)
        self.endpoints = [f"{LOCAL}:{port}"]
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(driver.fileno(), zmq.POLLIN)
        #: What a peer's full queue has not taken yet; the reply cache bounds it.
        self._backlog: deque[tuple[bytes, list[Any]]] = deque()

    # -- main thread ----------------------------------------------------------------------------

    def receive(self, timeout: float, device: bool) -> None:
        """Wait for something to happen, and read what there is.

        Parameters
        ----------
        timeout : float
            Seconds to wait at most; 0 does not wait.
        device : bool
            Somebody waits for device work: its end counts too.
        """
        with self._lock:
            if self._backlog:
                self._retry()
            if not timeout or self._backlog or device:
                self._poll(min(timeout, RETRY) if self._backlog else timeout)
            else:
                self._look_out()
                self._take(0)
            self._read_ahead()

    def has_more(self) -> bool:
        """Return whether a message can be read now."""
        # Not while the pulse thread has the socket; it reads what there is, too.
        if self.messages or not self._lock.acquire(blocking=False):
            return bool(self.messages)
        try:
            return self._readable()
        finally:
            self._lock.release()

    def _look_out(self) -> None:
        """Look for a message for a moment, if the last wait has brought one."""
        lively, self._lively = self._lively, False
        if not (lively and self._spin):
            return
        now, end = time.monotonic, time.monotonic() + self._spin
        while not self._readable() and now() < end:
            os.sched_yield()

    def _read_ahead(self) -> None:
        self.more = self._readable()
        while self.more and len(self.messages) < READ_BURST:
            self._take(zmq.NOBLOCK)
            self.more = self._readable()

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE)

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """Send to a peer without ever blocking; False if it is gone.

        What a slow peer does not take is kept and tried again, in order.
        """
        with self._lock:
            return self._send(peer, frames)

    def forget(self) -> None:
        """Drop what was meant for a peer that is gone; it is owed still, and sent again."""
        self._backlog.clear()

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

    # -- any thread -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `receive` return."""
        # A full queue of wake-up calls does as well as one more.
        with self._wake_lock, contextlib.suppress(zmq.Again):
            self._waker.send(b"", zmq.NOBLOCK)

    def stand_in(self, generation: int, busy_seq: int, busy_for: float) -> None:
        """Answer heartbeats for the main thread if it is in a call; else do nothing."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._read_ahead()
            pong = wire.pack_pong(generation, 0, busy_seq, busy_for)
            for peer in list(self._heard):
                self._send(peer, [pong])
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the sockets; unsent messages are dropped."""
        with self._lock, self._wake_lock:
            self._socket.close(0)
            self._waker.close(0)
            self._context.term()

    # -- inside ---------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> None:
        events = dict(self._poller.poll(int(timeout * 1000)))
        if self._driver.fileno() in events:
            self._driver.drain()

    def _take(self, flags: int) -> bool:
        """Read one message; return False if there is none."""
        try:
            peer, *frames = receive(self._socket, flags, short=2)
        except zmq.Again:
            return False
        if peer in self._heard:
            self._heard[peer] = time.monotonic()
        if peer != WAKER:
            self._lively = True
            self.messages.append((peer, frames))
        return True

    def _send(self, peer: bytes, frames: list[Any]) -> bool:
        if self._backlog:
            self._backlog.append((peer, frames))
            return True
        try:
            self._socket.send(peer, _MORE)
            if len(frames) == 1:
                self._socket.send(frames[0])
            else:
                self._socket.send_multipart(frames, copy=False)
        except zmq.Again:
            self._backlog.append((peer, frames))
        except zmq.ZMQError:
            return False
        return True

    def _retry(self) -> None:
        backlog, self._backlog = self._backlog, deque()
        for peer, frames in backlog:
            self._send(peer, frames)
