"""HELLO to ATTACHED: how a client gets (back) to its session."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from outlast import __version__
from outlast.errors import (
    LinkTimeout,
    OutlastError,
    ProtocolError,
    ServerUnreachable,
    SessionFenced,
    by_code,
)
from outlast.session import wire
from outlast.session.client import ClientSession
from outlast.session.schema import Kind
from outlast.session.wire import Message
from outlast.shim.transport import Transport

#: Version that HELLO names: what the client's API follows.
CUDA_VERSION = 13000
#: How often a silent server is asked whether it is there while it prepares a session.
ASK_INTERVAL = 1.0  # seconds


@dataclass(slots=True)
class Handshake:
    """The attempts to attach after one loss of the connection.

    Parameters
    ----------
    server : str
        The gateway's endpoint.
    session : ClientSession
        The session; ``mutex`` guards it.
    silence : float
        Seconds without any sign of life after which a connection counts as dead.
    """

    server: str
    session: ClientSession
    mutex: threading.Lock
    relay: bool
    silence: float
    stop: threading.Event
    devices: list[dict[str, Any]] = field(default_factory=list)
    #: Attempts on which the worker's own address could not be reached.
    direct_failures: int = 0

    def attach(self, deadline: float) -> Transport:
        """Attach and return the data connection; ``session`` has taken it over.

        Raises
        ------
        ServerUnreachable
            No server, or a silent one.
        OutlastError
            The server's typed refusal.
        """
        gateway = self._connect(self.server)
        data: Transport | None = None
        endpoints: list[str] = []
        try:
            welcome = self._hello(gateway, deadline)
            endpoints = welcome["endpoints"].split()
            if not endpoints:
                data, gateway_kept = gateway, True
            else:
                endpoint = endpoints[self.direct_failures % len(endpoints)]
                data, gateway_kept = self._connect(endpoint), False
            self._attach(data, welcome, deadline)
        except BaseException as error:
            if data is not None and data is not gateway:
                data.close()
                self._note_direct(error, len(endpoints))
            gateway.close()
            raise
        if not gateway_kept:
            gateway.close()
        return data

    def _connect(self, endpoint: str) -> Transport:
        try:
            return Transport(endpoint)
        except OSError as error:
            raise ServerUnreachable(f"no connection to {endpoint} can be made: {error}") from error

    def _note_direct(self, error: BaseException, ways: int) -> None:
        """Go through the gateway once no direct way was found: there may be none.

        Each is tried, and one of them again: its worker may just have ended.
        """
        if isinstance(error, ServerUnreachable):
            self.direct_failures += 1
            self.relay = self.relay or self.direct_failures > ways

    def _hello(self, gateway: Transport, deadline: float) -> Message:
        with self.mutex:
            hello = self.session.hello(f"python {__version__}", self.relay, CUDA_VERSION)
        gateway.send([hello])
        welcome = self._await(gateway, Kind.WELCOME, deadline, "HELLO")
        self.devices = welcome["devices"]
        with self.mutex:
            self.session.window = welcome["window"]
        return welcome

    def _attach(self, data: Transport, welcome: Message, deadline: float) -> None:
        with self.mutex:
            frame = self.session.attach(welcome["generation"], welcome["secret"])
        data.send([frame])
        try:
            attached = self._await(data, Kind.ATTACHED, deadline, "ATTACH")
        except SessionFenced as error:
            # This attachment came too late; whether the session is over, HELLO tells.
            error.retryable = True  # type: ignore[misc]
            raise
        with self.mutex:
            self.session.attached(attached)

    def _await(self, transport: Transport, kind: Kind, deadline: float, stage: str) -> Message:
        """Wait for one kind of message; PINGs keep a busy server from counting as dead."""
        asked = time.monotonic()
        while not self.stop.is_set():
            messages, standing = transport.poll(0.1)
            for index, frames in enumerate(messages):
                message = _parsed(frames, transport.endpoint)
                if message.kind is kind:
                    # Replies may be right behind it: they belong to the link.
                    transport.unread(messages[index + 1 :])
                    return message
                if message.kind is Kind.REFUSED:
                    raise refusal(message)
            now = time.monotonic()
            if not standing:
                raise ServerUnreachable(
                    f"nothing accepts connections at {transport.endpoint}: {transport.broken}"
                )
            if now - transport.last_heard > self.silence:
                raise ServerUnreachable(
                    f"{transport.endpoint} is silent after {stage} for {self.silence:g} s"
                )
            if now > deadline:
                raise LinkTimeout(f"{transport.endpoint} did not answer {stage} in time")
            if now - asked > ASK_INTERVAL and kind is Kind.WELCOME:
                asked = now
                transport.send([wire.pack_message(Kind.PING, generation=0, stamp=0)])
        raise ServerUnreachable(f"interrupted while waiting for {transport.endpoint}")


def _parsed(frames: list[bytes], endpoint: str) -> Message:
    try:
        return wire.parse_message(frames)
    except ProtocolError as error:
        raise ServerUnreachable(f"no session server answers at {endpoint}: {error}") from error


def refusal(message: Message) -> OutlastError:
    """Return the typed error of a REFUSED."""
    error = by_code(message["error"])(message["message"])
    if isinstance(error, ProtocolError):
        # The peer did not understand us, or lost something: a new attachment mends that.
        error.retryable = True  # type: ignore[misc]
    return error
