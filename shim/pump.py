"""Moving the frames of a link: whoever holds the socket sends, waits and receives.

The mutex of the link guards everything here; it is free only while a thread waits in the
transport, and then `Pump.polling` keeps the others off the socket.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from outlast.errors import OutlastError, ProtocolError, SessionFenced
from outlast.session import wire
from outlast.session.client import ClientSession
from outlast.session.phase import Phase
from outlast.session.schema import Kind
from outlast.shim.handshake import refusal
from outlast.shim.settings import LinkSettings
from outlast.shim.transport import Transport

log = logging.getLogger("outlast.link")

#: How often an acknowledgement is sent on its own at most.
ACK_INTERVAL = 0.05  # seconds
#: Bytes landed after which one is sent at once.
ACK_BYTES = 8 << 20
#: How long a thread that only looks leaves the processor to the one that receives.
GLANCE = 50e-6  # seconds
#: How often a thread that wants the transport looks whether it is free.
CLAIM_WAIT = 0.02  # seconds


class Pump:
    """The data connection of a link and who may touch it.

    Parameters
    ----------
    session : ClientSession
        The state machine.
    settings : LinkSettings
        Heartbeats.
    mutex : threading.Lock
        Held by the caller of every method.
    rouse : callable
        Wakes the caretaker when the connection is lost.
    """

    def __init__(
        self,
        session: ClientSession,
        settings: LinkSettings,
        mutex: threading.Lock,
        rouse: Callable[[], None],
    ) -> None:
        #: Notified when anything landed, the connection came or went.
        self.changed = threading.Condition(mutex)
        self.transport: Transport | None = None
        #: A thread waits in the transport without the mutex.
        self.polling = False
        #: When the connection was lost last, and why.
        self.lost_at = 0.0
        self.lost_because = ""
        #: The server has said that it goes.
        self.said_goodbye = False
        self._session = session
        self._settings = settings
        self._mutex = mutex
        self._rouse = rouse
        #: Threads that want the transport to themselves.
        self._claims = 0
        self._landed = 0
        self._acked_at = 0.0
        self._asked_at = 0.0

    def install(self, transport: Transport) -> None:
        """Take a new connection over."""
        self.transport = transport
        self.said_goodbye = False
        self.send_all(transport)
        self.changed.notify_all()

    def turn(self, timeout: float) -> None:
        """Move frames for at most ``timeout`` seconds, or let the thread that does so."""
        if self.polling or self.transport is None or self._claims:
            if self.polling and self._session.has_unsent:
                self.wake()
            self.changed.wait(timeout)
            return
        self.pump(self.transport, timeout)

    def look(self) -> None:
        """Take in what has come; where another thread does so, let it."""
        if self.polling or self.transport is None or self._claims:
            self.turn(GLANCE)
        else:
            self.pump(self.transport, 0.0)

    def take_over(self, timeout: float) -> bool:
        """Have the thread that polls stand back, however long its own wait is.

        Returns
        -------
        bool
            Whether nobody polls now, and until the caller lets go of the mutex.
        """
        deadline = time.monotonic() + timeout
        self._claims += 1
        try:
            while self.polling and time.monotonic() < deadline:
                self.wake()
                self.changed.wait(CLAIM_WAIT)
        finally:
            self._claims -= 1
            self.changed.notify_all()
        return not self.polling

    def wake(self) -> None:
        """Interrupt the thread that polls."""
        if self.transport is not None:
            self.transport.wake()

    def push(self) -> None:
        """Send what the window allows, or have the polling thread do it."""
        if self.polling:
            self.wake()
        elif self.transport is not None:
            self.send_all(self.transport)

    def send_all(self, transport: Transport) -> None:
        """Send what the window allows."""
        session = self._session
        try:
            outgoing = session.take_outgoing()
        except OutlastError as error:  # a part of the log is lost: nothing can be sent again
            session.close(error)
            self.disconnect(transport, str(error))
            return
        for frames in outgoing:
            transport.send(frames)
        if session.phase is Phase.ATTACHED and session.log.wants_epoch(session.applied):
            request = wire.pack_message(Kind.EPOCH_REQUEST, generation=session.generation)
            transport.send([request])

    def pump(self, transport: Transport, timeout: float) -> None:
        """Send, wait and receive once; the mutex is free while this thread waits."""
        self.send_all(transport)
        if self.transport is not transport:
            return  # there was something that cannot be sent
        try:
            messages, standing = self._receive(transport, timeout)
            for frames in messages:
                if self.transport is not transport:
                    break
                self._handle(transport, frames)
        except BaseException:
            # Ctrl-C may have cost messages; with a new connection they come again.
            self.disconnect(transport, "interrupted")
            raise
        if self.transport is not transport:
            self.changed.notify_all()
            return
        if not standing:
            self.disconnect(transport, "the connection broke")
        self._beat(transport)
        if messages or not standing or self._claims:
            self.changed.notify_all()

    def _receive(self, transport: Transport, timeout: float) -> tuple[list[list[bytes]], bool]:
        """Wait without the mutex."""
        self.polling = True
        self._mutex.release()
        try:
            return transport.poll(timeout)
        finally:
            self._mutex.acquire()
            self.polling = False

    def _handle(self, transport: Transport, frames: list[bytes]) -> None:
        session = self._session
        try:
            first = frames[0]
            replies = wire.parse_replies(first)
            if replies is not None:
                payloads = frames[1:]
                session.receive_replies(*replies, first, payloads, wire.REPLIES_HEADER.size)
                self._landed += len(first) + sum(map(len, payloads)) if payloads else len(first)
                if session.recovery.wanted:
                    self.disconnect(transport, session.recovery.reason)
                return
            message = wire.parse_message(frames)
            if message.kind is Kind.PING:
                transport.send([wire.pack_pong(message["generation"], message["stamp"])])
            elif message.kind is Kind.BYE:
                self.disconnect(transport, message["reason"])
                self.said_goodbye = True
            elif message.kind is Kind.REFUSED:
                self._on_refused(transport, refusal(message))
            else:
                session.receive(message)
        except ProtocolError as error:
            self.disconnect(transport, str(error))

    def _on_refused(self, transport: Transport, error: OutlastError) -> None:
        # Fenced here means: this attachment is over. Whether the session is, HELLO tells.
        if not (error.retryable or isinstance(error, SessionFenced)):
            self._session.close(error)
        self.disconnect(transport, str(error))

    def _beat(self, transport: Transport) -> None:
        """Acknowledge and ask for a sign of life when it is time."""
        if self.transport is not transport:
            return
        now = time.monotonic()
        if now - self._acked_at > ACK_INTERVAL or self._landed > ACK_BYTES:
            self._acked_at, self._landed = now, 0
            ack = self._session.ack()
            if ack is not None:
                transport.send([ack])
        if now - transport.last_heard > self._settings.heartbeat_timeout:
            self.disconnect(transport, "the server is silent")
        elif self._settings.heartbeat < now - max(
            self._asked_at, min(transport.last_heard, transport.last_sent)
        ):
            self._asked_at = now
            ping = wire.pack_message(
                Kind.PING, generation=self._session.generation, stamp=int(now * 1e6)
            )
            transport.send([ping])

    def disconnect(self, transport: Transport, reason: str) -> None:
        """Give a connection up; the caretaker brings another one."""
        if self.transport is not transport:
            return
        self.transport = None
        transport.close()
        self._session.detached()
        self.lost_at, self.lost_because = time.monotonic(), reason
        log.info(
            "link lost: %s",
            reason,
            extra={"action": "link_lost", "session": self._session.session_id},
        )
        self._rouse()
        self.changed.notify_all()
