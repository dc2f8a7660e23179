"""A TCP connection that speaks ZMTP in the thread that uses it: no call ever waits."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress

from outlast import zmtp
from outlast.courier import VECTOR, Courier
from outlast.errors import ProtocolError
from outlast.zmtp import Frame, Memory

#: Read at once at most, so that other work gets its turn.
BURST = 8 << 20  # bytes
#: What is unsent then goes on in a thread of its own, if the socket may have one.
BULK = 512 << 10  # bytes


class ZmtpSocket:
    """One end of a connection.

    Parameters
    ----------
    connection : socket.socket
        Connected, or on the way. It is closed with this.
    kind : bytes
        What socket this is: ``DEALER`` or ``ROUTER``.
    kinds : collection of bytes
        What the peer may be.
    frame_limit, message_limit : int
        Bytes that the peer may send in a frame and in a message.
    memory : callable, optional
        Gives memory for long frames; see `outlast.zmtp.Decoder`.
    courier : bool
        Whether long messages may be sent by a thread, beside what this one does.
    """

    def __init__(
        self,
        connection: socket.socket,
        kind: bytes,
        kinds: Collection[bytes],
        frame_limit: int,
        message_limit: int,
        courier: bool = False,
        memory: Memory = lambda _: None,
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: Why nothing more comes or goes; empty while the connection stands.
        self.broken = ""
        self.last_heard = time.monotonic()
        self._connection = connection
        self._decoder = zmtp.Decoder(kinds, frame_limit, message_limit, memory)
        #: Something is being sent or read.
        self._busy = False
        #: Messages that have come, oldest first.
        self.messages = self._decoder.messages
        self._unsent: deque[Frame] = deque([zmtp.opening(kind)])
        #: Messages that wait until the peer has said what it is: it may refuse them before.
        self._early: list[Frame] = []
        self._receive_into = connection.recv_into
        self._courier = Courier(connection) if courier else None
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        return self._connection.fileno()

    @property
    def ready(self) -> bool:
        """Whether the peer has said what it is."""
        return self._decoder.ready

    @property
    def has_unsent(self) -> bool:
        """Whether the system has not taken all yet: `flush` when it can be written."""
        return bool(self._unsent)

    @property
    def is_sending(self) -> bool:
        """Whether anything is on its way to the system, by whomever."""
        return bool(self._unsent) or not (self._courier is None or self._courier.idle)

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message, or keep what the system does not take for `flush`."""
        if self._enter():
            self._send(zmtp.encode(frames))
        self._busy = False

    def _send(self, pieces: list[Frame]) -> None:
        if not self._decoder.ready:
            self._early += pieces
            return
        courier = self._courier
        if courier is not None and not courier.idle and courier.take(pieces):
            self.broken = self.broken or _reason(courier.error)
            return
        if self._unsent or len(pieces) > 1:
            self._unsent.extend(pieces)
            if courier is not None and sum(map(len, self._unsent)) > BULK:
                courier.hand_over([*self._unsent])
                self._unsent.clear()
            else:
                self._flush()
            return
        (piece,) = pieces
        try:
            sent = self._connection.send(piece)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._break(error)
            return
        if sent < len(piece):
            self._unsent.append(memoryview(piece)[sent:])

    def flush(self) -> None:
        """Send what is left of earlier messages, as far as the system takes it."""
        if self._enter():
            self._flush()
        self._busy = False

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent and not self.broken:
            try:
                sent = self._connection.sendmsg([*unsent][:VECTOR])
            except BlockingIOError:
                return
            except OSError as error:
                self._break(error)
                return
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = memoryview(unsent[0])[sent:]

    def receive(self) -> bool:
        """Read what there is, up to `BURST`; return whether anything came."""
        came = self._enter() and self._receive()
        self._busy = False
        return came

    def _receive(self) -> bool:
        decoder, receive_into = self._decoder, self._receive_into
        total = 0
        while total < BURST and not self.broken:
            space = decoder.space()
            try:
                count = receive_into(space)
            except BlockingIOError:
                break
            except OSError as error:
                self._break(error)
                break
            if not count:
                self.broken = "the peer closed the connection"
                break
            total += count
            try:
                decoder.take(count)
            except ProtocolError as error:
                self.broken = str(error)
                break
            if count < len(space):
                break  # this was all; what comes meanwhile is found the next time
        if total:
            self.last_heard = time.monotonic()
        if self._early and decoder.ready:
            self._unsent.extend(self._early)
            self._early.clear()
            self._flush()
        return total > 0

    def close(self) -> None:
        """Close it; what is unsent is dropped."""
        self.broken = self.broken or "closed"
        self._unsent.clear()
        self._early.clear()
        if self._courier is not None:
            if not self._courier.idle:
                with suppress(OSError):  # so that it waits no longer
                    self._connection.shutdown(socket.SHUT_RDWR)
            self._courier.close()
        with suppress(OSError):
            self._connection.close()

    def _enter(self) -> bool:
        """Begin to send or read; return whether the connection stands.

        If Ctrl-C ended the last time in the middle, nobody knows which bytes came and went:
        another connection has to begin again in order.
        """
        if self._busy and not self.broken:
            self.broken = "interrupted"
        if self.broken:
            self._unsent.clear()
            return False
        self._busy = True
        return True

    def _break(self, error: OSError) -> None:
        self.broken = _reason(error)
        self._unsent.clear()


def _reason(error: OSError | None) -> str:
    if error is None:
        return ""
    return os.strerror(error.errno) if error.errno else str(error)
