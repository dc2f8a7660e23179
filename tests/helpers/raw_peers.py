"""Connections to a gateway without a session: the test itself sends and reads frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zmq

from outlast.session import ids, wire
from outlast.session.schema import PROTOCOL_VERSION, STREAM_FORMAT, Intent, Kind
from outlast.session.wire import Message

#: The least that a socket may take in before its peer has to wait.
NARROW = 4096  # bytes


def hello(**changes: Any) -> bytes:
    """Return the HELLO of a client that makes a new session."""
    fields = {
        "protocol": PROTOCOL_VERSION,
        "stream_format": STREAM_FORMAT,
        "cuda_version": 13000,
        "intent": int(Intent.CREATE),
        "wishes": 0,
        "generation": 0,
        "log_head": 1,
        "next_seq": 1,
        "incarnation": ids.new_incarnation(),
        "token": ids.new_token(),
        "session": ids.random_session_id(),
        "build": "python test",
    }
    return wire.pack_message(Kind.HELLO, **{**fields, **changes})


def connections_owed(port: int) -> int:
    """Return how many connections that came to a port have something unsent on this side."""
    owed = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        established = state == "01" and int(local.rpartition(":")[2], 16) == port
        owed += established and int(queues.partition(":")[0], 16) > 0
    return owed


class RawPeers:
    """Any number of connections to one endpoint, closed together."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sockets: list[zmq.Socket[bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def __enter__(self) -> RawPeers:
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.destroy(linger=0)

    def connect(self, deaf: bool = False) -> zmq.Socket[bytes]:
        """Make a connection; a ``deaf`` one lets next to nothing in until it is read."""
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.reconnect_ivl = -1
        if deaf:
            dealer.rcvhwm = 1
            dealer.rcvbuf = NARROW
        dealer.connect(self.endpoint)
        self.sockets.append(dealer)
        return dealer

    def ask(self, frame: bytes, timeout: float) -> Message:
        """Send one message over a connection of its own and return the answer."""
        dealer = self.connect()
        dealer.send(frame)
        assert dealer.poll(int(timeout * 1000)), f"no answer within {timeout} s"
        return wire.parse_message(dealer.recv_multipart())
