"""The link of a client process: the session's state machine with sockets, threads and time.

Whoever waits for an answer moves the frames itself (there is no hand-over to an I/O
thread on the way of a call); while one thread does, others wait on a condition, and a
thread that only sends wakes it if it must. The link thread flushes what no one waits for,
keeps heartbeats, and brings a lost connection back.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import Any

import zmq

from outlast.errors import (
    LinkClosed,
    OutlastError,
    ProtocolError,
    ServerDraining,
    ServerUnreachable,
    SessionFenced,
)
from outlast.session import retry, wire
from outlast.session.client import ClientSession, Phase
from outlast.session.ids import HandleAllocator
from outlast.session.pending import Pending
from outlast.session.schema import INLINE_LIMIT, MAX_FRAME, Kind, Op
from outlast.shim.handshake import Handshake, refusal
from outlast.shim.linkage import Reply
from outlast.shim.settings import LinkSettings
from outlast.shim.transport import Transport

log = logging.getLogger("outlast.link")

#: How soon calls that nobody waits for are sent.
FLUSH_INTERVAL = 0.001  # seconds
#: How often the link thread looks when nothing happens.
IDLE_INTERVAL = 0.05  # seconds
#: Ticks without calls after which the link thread goes from the first to the second.
IDLE_TICKS = 20
#: Bytes not applied yet at which a fast program waits.
BACKLOG_LIMIT = 64 << 20
#: Bytes landed after which an acknowledgement is sent on its own.
ACK_BYTES = 8 << 20
#: How long a closing process tries to send what it still has.
LINGER = 1.0  # seconds


class SessionLink:
    """A client process's link to its session; implements `outlast.shim.linkage.Link`.

    Parameters
    ----------
    session : ClientSession
        The state machine.
    settings : LinkSettings
        Endpoint, timeouts and limits.
    """

    def __init__(self, session: ClientSession, settings: LinkSettings) -> None:
        self.settings = settings
        self.session_id = session.session_id
        self.devices: list[dict[str, Any]] = []
        self.inventory: dict[str, Any] = {}
        self.reconnects = 0
        #: Seconds each lost connection kept the session from its server.
        self.stalls: list[float] = []
        self._session = session
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._transport: Transport | None = None
        #: A thread is in `Transport.poll` without the mutex; nobody else may touch the socket.
        self._polling = False
        self._stop = threading.Event()
        self._tick = threading.Event()
        self._asleep = False
        self._idle_ticks = 0
        self._lost_at = 0.0
        self._landed = 0
        self._acked_at = 0.0
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._local = threading.local()
        self._threads = itertools.count(1)
        self._program_threads = 0
        self._handles = HandleAllocator()
        self._thread: threading.Thread | None = None

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach for the first time, within the connect timeout.

        Raises
        ------
        ServerUnreachable
            No server answered; names endpoint, attempts and elapsed time.
        OutlastError
            The server's typed refusal.
        """
        try:
            self._reattach(self.settings.connect_timeout)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._handles = HandleAllocator(self._session.first_handle)
        self.inventory = self._session.inventory
        self._thread = threading.Thread(target=self._run, name="outlast-link", daemon=True)
        self._thread.start()

    def close(self, end: bool = False) -> None:
        """Send what is pending (for a moment at most), say good-bye, close everything.

        Parameters
        ----------
        end : bool
            End the session on the server too.
        """
        if os.getpid() != self._pid or self._stop.is_set():
            return
        deadline = time.monotonic() + LINGER
        with self._mutex:
            self._session.seal()
            while self._session.has_unsent and time.monotonic() < deadline:
                if self._transport is None or self._session.phase is not Phase.ATTACHED:
                    break
                self._turn(0.02)
            self._say_bye(end)
            self._stop.set()
            self._session.close(LinkClosed("the session was closed"))
            self._changed.notify_all()
            if self._transport is not None:
                self._transport.wake()
        self._tick.set()
        if self._thread is not None:
            self._thread.join(LINGER)
        with self._mutex:
            while self._polling:
                self._changed.wait(0.1)
            if self._transport is not None:
                self._transport.close()
                self._transport = None
        self._context.destroy(linger=100)

    def _say_bye(self, end: bool) -> None:
        if self._transport is None or self._polling:
            return
        bye = wire.pack_message(
            Kind.BYE, generation=self._session.generation, end=int(end), reason="closed"
        )
        self._transport.send([bye])

    # -- calls ----------------------------------------------------------------------------------

    def send_record(self, head: bytes) -> int:
        """Append a one-way call whose record is complete already and return its seq."""
        session = self._session
        with self._mutex:
            if session.backlog > BACKLOG_LIMIT or session.phase is not Phase.ATTACHED:
                self._admit()
            seq = session.append(head, self._bind())
            if session.has_unsent:
                self._push()
            if self._asleep:
                self._asleep = False
                self._tick.set()
            return seq

    def send(self, op: Op, *args: int, data: bytes | None = None) -> int:
        """Append a one-way call to the log and return its seq; never wait for the server."""
        return self.send_record(wire.pack_record(op, *args, data=data))

    def call(self, op: Op, *args: int, data: bytes | None = None) -> Reply:
        """Send an answered call and wait for its outcome."""
        payload = data if data is not None and len(data) > INLINE_LIMIT else None
        record = wire.pack_record(
            op, *args, data=None if payload else data, payload=payload is not None
        )
        with self._mutex:
            self._admit()
            seq = self._session.append(record, self._bind(), payload)
            pending = self._session.expect(op, seq)
            self._session.seal()
            return self._wait(pending)

    def query(self, op: Op, *args: int) -> Reply:
        """Ask a query and wait for its answer; the link adds the query's number."""
        with self._mutex:
            self._admit()
            return self._wait(self._session.ask(op, args, self._bind()))

    def read_into(self, address: int, size: int, stream: int, flags: int, out: memoryview) -> int:
        """Copy device bytes into ``out`` and wait until they are there. Returns CUresult."""
        view = out.cast("B") if out.nbytes else out
        with self._mutex:
            self._admit()
            bind = self._bind()
            pieces = []
            # All pieces at consecutive places in the order: nothing comes in between.
            for offset in range(0, size, MAX_FRAME):
                length = min(MAX_FRAME, size - offset)
                record = wire.pack_record(Op.COPY_DTOH, address + offset, stream, length, flags)
                seq = self._session.append(record, bind)
                target = view[offset : offset + length]
                pieces.append(self._session.expect(Op.COPY_DTOH, seq, target))
            self._session.seal()
            results = [self._wait(piece).result for piece in pieces]
        return next((result for result in results if result), 0)

    def write_from(self, address: int, stream: int, flags: int, data: memoryview) -> int:
        """Take the bytes of ``data`` and copy them to the device. Returns CUresult."""
        view = data.cast("B") if data.nbytes else data
        for offset in range(0, len(view), MAX_FRAME):
            piece = bytes(view[offset : offset + MAX_FRAME])
            inline = len(piece) <= INLINE_LIMIT
            record = wire.pack_record(
                Op.COPY_HTOD,
                address + offset,
                stream,
                flags,
                data=piece if inline else None,
                payload=not inline,
            )
            with self._mutex:
                self._admit()
                self._session.append(record, self._bind(), None if inline else piece)
                if self._session.has_unsent:
                    self._push()
        self._rouse()
        return 0

    def new_handle(self) -> int:
        """Return a virtual handle that was never used in this session."""
        with self._mutex:
            return self._handles.take()

    def bind(self, context: int) -> None:
        """Note the calling thread's current context (0: none) for its next calls."""
        number = getattr(self._local, "number", 0)
        if not number:
            number = self._local.number = next(self._threads)
            self._program_threads = number
        self._local.bind = wire.pack_record(Op.BIND, number, context)

    def take_deferred(self, context: int) -> int:
        """Return, once, the CUresult of a one-way call of ``context`` that failed, else 0."""
        session = self._session
        if not session.deferred:
            return 0
        with self._mutex:
            return session.take_deferred(context)

    def sticky(self) -> int:
        """Return the CUresult that poisoned the process's contexts, else 0."""
        return self._session.sticky

    def statistics(self) -> dict[str, Any]:
        """Return counts of what the link went through."""
        return {
            "replayed_calls": self._session.replayed_calls,
            "reconnects": self.reconnects,
            "stalls_s": [round(stall, 3) for stall in self.stalls],
        }

    # -- under the mutex ------------------------------------------------------------------------

    def _bind(self) -> bytes:
        try:
            bind: bytes = self._local.bind
        except AttributeError:
            self.bind(0)
            bind = self._local.bind
        return bind

    def _admit(self) -> None:
        """Wait until a call may be logged; raise if none ever may."""
        session = self._session
        while True:
            if session.error is not None:
                raise session.error
            session.log.check_room()
            if session.backlog <= BACKLOG_LIMIT:
                return
            self._turn(IDLE_INTERVAL)

    def _wait(self, pending: Pending) -> Reply:
        while not pending.done:
            self._turn(IDLE_INTERVAL)
        if pending.error is not None:
            raise pending.error
        reply = pending.reply
        assert reply is not None
        return Reply(reply.result, reply.value, reply.data)

    def _turn(self, timeout: float) -> None:
        """Move frames for at most ``timeout`` seconds, or let the thread that does so."""
        if self._polling or self._transport is None:
            if self._polling and self._session.has_unsent:
                self._transport_wake()
            self._changed.wait(timeout)
            return
        self._pump(self._transport, timeout)

    def _transport_wake(self) -> None:
        if self._transport is not None:
            self._transport.wake()

    def _push(self) -> None:
        """Send what the window allows, or have the polling thread do it."""
        if self._polling:
            self._transport_wake()
        elif self._transport is not None:
            self._send_all(self._transport)

    def _send_all(self, transport: Transport) -> None:
        session = self._session
        for frames in session.take_outgoing():
            if not transport.send(frames):
                # Cannot be: the window is far below the queue. Begin again in order.
                self._disconnect(transport, "its queue is full")
                return
        if session.phase is Phase.ATTACHED and session.log.wants_epoch():
            request = wire.pack_message(Kind.EPOCH_REQUEST, generation=session.generation)
            transport.send([request])

    def _pump(self, transport: Transport, timeout: float) -> None:
        """Send, wait and receive once; the mutex is free while this thread waits."""
        self._send_all(transport)
        if self._transport is not transport:
            return  # sending showed that the connection is gone
        self._polling = True
        self._mutex.release()
        try:
            # A program of one thread needs no interruption while it waits.
            alone = timeout and self._program_threads == 1
            messages, standing = transport.receive() if alone else transport.poll(timeout)
        finally:
            self._mutex.acquire()
            self._polling = False
        if self._transport is not transport:
            self._changed.notify_all()
            return
        for frames in messages:
            self._handle(transport, frames)
            if self._transport is not transport:
                break
        if not standing:
            self._disconnect(transport, "the connection broke")
        self._beat(transport)
        if messages or not standing:
            self._changed.notify_all()

    def _handle(self, transport: Transport, frames: list[bytes]) -> None:
        session = self._session
        try:
            first = frames[0]
            replies = wire.parse_replies(first)
            if replies is not None:
                stream = memoryview(first)[wire.REPLIES_HEADER.size :]
                session.receive_replies(*replies, stream, frames[1:])
                self._landed += len(first) + sum(map(len, frames[1:]))
                return
            message = wire.parse_message(frames)
            if message.kind is Kind.BYE:
                self._disconnect(transport, message["reason"])
            elif message.kind is Kind.REFUSED:
                self._on_refused(transport, refusal(message))
            else:
                session.receive(message)
        except ProtocolError as error:
            self._disconnect(transport, str(error))

    def _on_refused(self, transport: Transport, error: OutlastError) -> None:
        # Fenced here means: this attachment is over. Whether the session is, HELLO tells.
        if not (error.retryable or isinstance(error, SessionFenced)):
            self._session.close(error)
        self._disconnect(transport, str(error))

    def _beat(self, transport: Transport) -> None:
        """Acknowledge and ask for a sign of life when it is time."""
        if self._transport is not transport:
            return
        now = time.monotonic()
        if now - self._acked_at > IDLE_INTERVAL or self._landed > ACK_BYTES:
            self._acked_at, self._landed = now, 0
            ack = self._session.ack()
            if ack is not None:
                transport.send([ack])
        if now - transport.last_heard > self.settings.heartbeat_timeout:
            self._disconnect(transport, "the server is silent")
        elif now - min(transport.last_heard, transport.last_sent) > self.settings.heartbeat:
            ping = wire.pack_message(
                Kind.PING, generation=self._session.generation, stamp=int(now * 1e6)
            )
            transport.send([ping])

    def _disconnect(self, transport: Transport, reason: str) -> None:
        if self._transport is not transport:
            return
        self._transport = None
        transport.close()
        self._session.detached()
        self._lost_at = time.monotonic()
        log.info("link lost: %s", reason, extra={"action": "link_lost", "session": self.session_id})
        self._rouse()
        self._changed.notify_all()

    def _rouse(self) -> None:
        self._asleep = False
        self._tick.set()

    # -- the link thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._mutex:
                detached = self._session.phase is Phase.DETACHED and self._transport is None
                if not detached:
                    self._on_tick()
                    self._asleep = self._idle_ticks >= IDLE_TICKS
            if detached:
                self._come_back()
            self._tick.wait(IDLE_INTERVAL if self._asleep else FLUSH_INTERVAL)
            self._tick.clear()

    def _on_tick(self) -> None:
        session = self._session
        if session.open_calls:
            self._idle_ticks = 0
            session.seal()
        else:
            self._idle_ticks += 1
        if self._polling:
            if session.has_unsent:
                self._transport_wake()
        elif self._transport is not None:
            self._pump(self._transport, 0.0)

    def _come_back(self) -> None:
        try:
            self._reattach(self.settings.reconnect_timeout)
        except retry.Interrupted:
            return
        except OutlastError as error:
            with self._mutex:
                self._session.close(error)
                self._changed.notify_all()
            return
        stall = time.monotonic() - self._lost_at
        self.reconnects += 1
        self.stalls.append(stall)
        log.info(
            "link back after %.3f s",
            stall,
            extra={"action": "link_back", "session": self.session_id},
        )

    def _reattach(self, timeout: float) -> None:
        """Attach within ``timeout`` seconds; a draining server restarts that time once."""
        try:
            self._attempts(timeout)
        except ServerDraining:
            self._attempts(timeout)

    def _attempts(self, timeout: float) -> None:
        begin = time.monotonic()
        handshake = Handshake(
            self._context,
            self.settings.server,
            self._session,
            self._mutex,
            self.settings.relay,
            self.settings.heartbeat_timeout,
            self._stop,
        )
        attempts = 0
        try:
            for attempt in retry.reconnecting(timeout, self._stop):
                with attempt:
                    attempts += 1
                    transport = handshake.attach(begin + timeout)
        except (ServerUnreachable, TimeoutError) as error:
            elapsed = time.monotonic() - begin
            raise ServerUnreachable(
                f"no session server at {self.settings.server}: {attempts} attempts in "
                f"{elapsed:.1f} s, the last one ended so: {error}. Is `outlast serve` running "
                "there? LUPINE_SERVER names it",
                endpoint=self.settings.server,
                attempts=attempts,
                elapsed=elapsed,
            ) from error
        self.devices = handshake.devices
        with self._mutex:
            self._transport = transport
            self._send_all(transport)
            self._changed.notify_all()
