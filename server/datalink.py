"""The worker's data port: a ZeroMQ ROUTER of the main thread, which the pulse thread may borrow.

One lock guards the connections. The main thread holds it while it waits and moves frames, not
while it executes; so the pulse thread gets it exactly when a call takes long.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.messages import keep_freed_memory, stay_in_cache
from outlast.session import wire
from outlast.session.schema import MAX_FRAME
from outlast.zmtp_socket import ZmtpSocket

if TYPE_CHECKING:
    from outlast.server.drivers.base import Driver

#: A message may have many payload frames of `MAX_FRAME` bytes, each checked on its own.
MAX_MESSAGE = MAX_FRAME + (64 << 10)
#: Bytes of all its frames: more than any batch of a client has.
MAX_TOTAL = 32 << 20
#: Messages read ahead of the executor.
READ_BURST = 256
#: How soon a full queue is tried again.
RETRY = 0.005  # seconds
#: Longest wait.
SLICE = 0.25  # seconds
#: How long a wait behind a message tries again and again before it blocks: a thread that
#: sleeps takes some 50 us to come back. 0 never does.
SPIN = 100e-6  # seconds
#: Processors that it takes: on fewer, the client would wait for the one that it holds.
SPIN_PROCESSORS = 2
#: Where it listens: a client on another machine comes through the gateway.
LOCAL = "127.0.0.1"
#: How often connections that nobody is attached by are looked at, whatever comes from the other.
LOOK_ROUND = 0.002  # seconds
#: Connections kept; the oldest that nobody is attached by makes room for one more.
MOST_PEERS = 128
#: How long a connection may stand without anybody being attached by it.
PATIENCE = 30.0  # seconds


class DataLink:
    """Port, connections, wake-up calls and liveness of peers.

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
        self.messages: deque[tuple[bytes, list[Any]]] = deque()
        #: There may be more to read than was read when last looked.
        self.more = False
        self._driver = driver
        self._lock = threading.Lock()
        self._spin = SPIN if len(os.sched_getaffinity(0)) >= SPIN_PROCESSORS else 0.0
        #: A message has come since the last wait, so the next one may be near.
        self._lively = False
        #: Who is attached, for all that is known here.
        self._attached: bytes | None = None
        self._look_at = 0.0
        keep_freed_memory()
        self._listener = socket.create_server((LOCAL, 0), backlog=socket.SOMAXCONN)
        self._listener.setblocking(False)
        self.endpoints = [f"tcp://{LOCAL}:{self._listener.getsockname()[1]}"]
        stay_in_cache(self._listener, self.endpoints[0])  # and so will what is accepted
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._closed = False
        self._numbers = itertools.count(1)
        self._peers: dict[bytes, ZmtpSocket] = {}
        self._names: dict[int, bytes] = {}
        self._poller = select.poll()
        for descriptor in (self._listener.fileno(), self._waker, driver.fileno()):
            self._poller.register(descriptor, select.POLLIN)

    # -- main thread ----------------------------------------------------------------------------

    def receive(self, timeout: float, device: bool) -> None:
        """Wait for something to happen, and read what there is.

        Parameters
        ----------
        timeout : float
            Seconds to wait at most; 0 does not wait.
        device : bool
            Somebody waits for device work: its end is near, so there is no looking out first.
        """
        with self._lock:
            self.more = False
            found = bool(self.messages)
            if not (found or device) and timeout > 0:
                found = self._look_out()
            now = time.monotonic()
            if found and now < self._look_at:
                return
            self._look_at = now + LOOK_ROUND
            self._wait(0.0 if found else min(timeout, SLICE, self.heartbeat))

    def has_more(self) -> bool:
        """Return whether a message can be handled now."""
        # Not while the pulse thread has the connections; it reads what there is, too.
        if self.messages or not self._lock.acquire(blocking=False):
            return bool(self.messages)
        try:
            if self._attached is not None:
                self._read(self._attached)
            return bool(self.messages)
        finally:
            self._lock.release()

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """Send to a peer without ever blocking; False if it is gone.

        What a slow peer does not take is kept and tried again, in order.
        """
        with self._lock:
            return self._send(peer, frames)

    def forget(self) -> None:
        """Drop what was meant for whoever was attached; it is owed still, and sent again."""
        with self._lock:
            attached, self._attached = self._attached, None
            if attached is not None:
                self._let_go(attached)

    def heard(self, peer: bytes) -> None:
        """Take in that this peer is attached now."""
        with self._lock:
            before, self._attached = self._attached, peer
            if before is not None and before != peer:
                self._let_go(before)

    def silence(self, peer: bytes | None) -> float:
        """Return the seconds since a peer was last heard."""
        connection = self._peers.get(peer or b"")
        if connection is None or connection.broken:
            return float("inf")
        return time.monotonic() - connection.last_heard

    def silent(self, peer: bytes) -> bool:
        """Return whether a peer has been silent for so long that it counts as gone."""
        return self.silence(peer) > self.timeout

    # -- any thread -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `receive` return."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._waker, 1)

    def stand_in(self, generation: int, busy_seq: int, busy_for: float) -> None:
        """Answer heartbeats for the main thread if it is in a call; else do nothing."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            # Only that: what wakes the main thread has to be there still when it looks.
            peer = self._attached
            if peer is not None:
                self._read(peer)
                self._send(peer, [wire.pack_pong(generation, 0, busy_seq, busy_for)])
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close port and connections; unsent messages are dropped."""
        with self._lock, self._wake_lock:
            for peer in list(self._peers):
                self._drop(peer)
            self._listener.close()
            if not self._closed:
                self._closed = True
                os.close(self._waker)

    # -- inside ---------------------------------------------------------------------------------

    def _look_out(self) -> bool:
        """Look for a message of the attached peer for a moment, if the last wait brought one."""
        lively, self._lively = self._lively, False
        peer = self._attached
        if not (lively and self._spin) or peer is None:
            return False
        now, end = time.monotonic, time.monotonic() + self._spin
        while not self._read(peer):
            if now() >= end or peer not in self._peers:
                return False
            os.sched_yield()
        return True

    def _wait(self, timeout: float) -> None:
        for descriptor, events in self._poller.poll(int(timeout * 1000)):
            peer = self._names.get(descriptor)
            if peer is not None:
                if events & select.POLLOUT:
                    self._flush(peer)
                if events & ~select.POLLOUT:
                    self._read(peer)
            elif descriptor == self._waker:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._waker)
            elif descriptor == self._listener.fileno():
                self._accept()
            else:
                self._driver.drain()

    def _read(self, peer: bytes) -> bool:
        """Read what a peer has sent; return whether there is a message."""
        connection = self._peers.get(peer)
        if connection is None:
            return False
        if len(self.messages) >= READ_BURST:
            self.more = True
            return True
        connection.receive()
        came = connection.messages
        found = bool(came)
        while came:
            self._lively = True
            self.messages.append((peer, came.popleft()))
        if connection.broken and not found:
            self._drop(peer)
        return found

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            time.sleep(RETRY)  # gone already, or there are no descriptors left
            return
        self._make_room()
        peer = b"peer %d" % next(self._numbers)
        link = ZmtpSocket(
            connection,
            b"ROUTER",
            (b"DEALER",),
            MAX_MESSAGE,
            MAX_TOTAL,
            courier=True,
            memory=self._driver.frame_memory,
        )
        self._peers[peer] = link
        self._names[link.fileno()] = peer
        self._poller.register(link, select.POLLIN)

    def _make_room(self) -> None:
        """Drop connections that nobody came to be attached by."""
        now = time.monotonic()
        strangers = [peer for peer in self._peers if peer != self._attached]
        for peer in strangers[: max(0, len(self._peers) + 1 - MOST_PEERS)]:
            self._drop(peer)
        for peer in strangers:
            connection = self._peers.get(peer)
            if connection is not None and now - connection.last_heard > PATIENCE:
                self._drop(peer)

    def _send(self, peer: bytes, frames: list[Any]) -> bool:
        connection = self._peers.get(peer)
        if connection is None or connection.broken:
            return False
        connection.send(frames)
        if connection.has_unsent:
            self._poller.modify(connection, select.POLLIN | select.POLLOUT)
        return not connection.broken

    def _flush(self, peer: bytes) -> None:
        connection = self._peers[peer]
        connection.flush()
        if not connection.has_unsent:
            self._poller.modify(connection, select.POLLIN)

    def _let_go(self, peer: bytes) -> None:
        """Drop a peer that is attached no more, if it has not read what it was sent."""
        connection = self._peers.get(peer)
        if connection is not None and connection.is_sending:
            self._drop(peer)

    def _drop(self, peer: bytes) -> None:
        connection = self._peers.pop(peer)
        self._poller.unregister(connection)
        del self._names[connection.fileno()]
        connection.close()
