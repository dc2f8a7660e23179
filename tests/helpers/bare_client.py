"""A client without a link: the test itself decides when frames are sent and read."""

from __future__ import annotations

import threading
import time
from unittest.mock import patch

from helpers.raw_peers import NARROW

from outlast.session import ids, wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.pending import Pending
from outlast.session.schema import Intent
from outlast.shim import transport
from outlast.shim.handshake import Handshake
from outlast.shim.transport import Transport


class BareClient:
    """An attached session whose messages move only in `push` and `pull`.

    Parameters
    ----------
    server : str
        The gateway's endpoint.
    relay : bool
        Go through the gateway's port.
    deaf : bool
        Let next to nothing in that is not pulled: replies stay with the server.
    """

    def __init__(self, server: str, relay: bool = False, deaf: bool = False) -> None:
        self.session = ClientSession(
            ids.random_session_id(), ids.new_incarnation(), ids.new_token(), None, Intent.CREATE
        )
        self._bind = wire.pack_record(Op.BIND, 1, 0)
        self._left: list[Transport] = []
        self._handshake = Handshake(
            server, self.session, threading.Lock(), relay, 5.0, threading.Event()
        )
        with patch.object(transport, "RECEIVE_BUFFER", NARROW if deaf else 0):
            self.transport: Transport = self._handshake.attach(time.monotonic() + 10)

    def __enter__(self) -> BareClient:
        return self

    def __exit__(self, *exc: object) -> None:
        for each in [self.transport, *self._left]:
            each.close()

    def attach_anew(self) -> None:
        """Attach over another connection; the one before stays open, and is never read again."""
        self._left.append(self.transport)
        self.session.detached()
        self.transport = self._handshake.attach(time.monotonic() + 10)

    def bind(self, context: int) -> None:
        """Make a context the one that later calls are made in."""
        self._bind = wire.pack_record(Op.BIND, 1, context)

    def send(self, op: Op, *args: int) -> int:
        """Log a one-way call."""
        return self.session.append(wire.pack_record(op, *args), self._bind)

    def call(self, op: Op, *args: int, out: memoryview | None = None) -> Pending:
        """Log an answered call."""
        seq = self.session.append(wire.pack_record(op, *args), self._bind)
        return self.session.expect(op, seq, out)

    def push(self) -> None:
        """Send what may be sent."""
        self.session.seal()
        for frames in self.session.take_outgoing():
            self.transport.send(frames)

    def pull(self, timeout: float) -> bool:
        """Take in what has come, acknowledge it; return whether the connection stands."""
        messages, standing = self.transport.poll(timeout)
        for frames in messages:
            replies = wire.parse_replies(frames[0])
            if replies is None:
                self.session.receive(wire.parse_message(frames))
            else:
                stream = memoryview(frames[0])[wire.REPLIES_HEADER.size :]
                self.session.receive_replies(*replies, stream, frames[1:])
        acknowledgement = self.session.ack()
        if acknowledgement is not None:
            self.transport.send([acknowledgement])
        return standing
