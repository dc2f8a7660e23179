"""A TCP proxy between client and server that breaks the link on purpose.

It understands ZeroMQ's framing as far as message borders go, so that a test can lose one
chosen message: the request, or the reply. Everything of a client passes it in relay mode.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from outlast.session.schema import Kind

#: Bytes of ZMTP's greeting: a peer waits for each part before it sends its next one.
GREETING = (10, 1, 53)
MORE, LONG, COMMAND = 1, 2, 4  # flags of a ZMTP frame
SLICE = 32 << 10  # bytes forwarded at once over a slow link


class Way(Enum):
    """Direction of a message."""

    UP = "to the server"
    DOWN = "to the client"


class Fate(Enum):
    """What becomes of a message."""

    PASS = "pass"
    #: It is lost, and the connection with it.
    LOSE = "lose"


#: Decides about each message: its way and its kind (None: not one of ours).
Rule = Callable[[Way, "Kind | None"], Fate]


def pass_all(way: Way, kind: Kind | None) -> Fate:
    """Let every message pass."""
    return Fate.PASS


@dataclass
class LoseOnce:
    """Loses the first message of a kind on one way, and the connection with it."""

    way: Way
    kind: Kind
    #: Called in place of delivering it, before the connection breaks.
    then: Callable[[], object] = lambda: None
    #: Set once it is lost.
    lost: threading.Event = field(default_factory=threading.Event)

    def __call__(self, way: Way, kind: Kind | None) -> Fate:
        if self.lost.is_set() or (way, kind) != (self.way, self.kind):
            return Fate.PASS
        self.lost.set()
        self.then()
        return Fate.LOSE


@dataclass
class HoldBack:
    """Holds the first message of a kind back that comes down, and all behind it, on every link."""

    kind: Kind
    #: Set once there is one.
    held: threading.Event = field(default_factory=threading.Event)
    #: To be set by the test, also when it fails: lets everything through again.
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, way: Way, kind: Kind | None) -> Fate:
        if way is Way.DOWN and kind is self.kind:
            self.held.set()
        if way is Way.DOWN and self.held.is_set():
            self.released.wait()
        return Fate.PASS


@dataclass
class Recorder:
    """Lets everything pass and notes the kinds that go one way."""

    way: Way
    kinds: list[Kind] = field(default_factory=list)

    def __call__(self, way: Way, kind: Kind | None) -> Fate:
        if way is self.way and kind is not None:
            self.kinds.append(kind)
        return Fate.PASS


class BrokenLink:
    """Proxy to ``target``; clients connect to `endpoint`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.rule: Rule = pass_all
        #: Bytes per second on each way; 0: as fast as it goes.
        self.rate = 0.0
        #: Connections made through the proxy so far.
        self.connections = 0
        #: When each of them was made.
        self.connected_at: list[float] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closing = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def __enter__(self) -> BrokenLink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection; new ones may be made at once."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _shut(each)

    def freeze(self) -> None:
        """Let no byte through any more, and tell nobody: a black hole."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let bytes through again, those first that waited."""
        self._flowing.set()

    def lose_next(
        self, way: Way, kind: Kind, then: Callable[[], object] = lambda: None
    ) -> LoseOnce:
        """Lose the next message of a kind; returns the rule that will say so."""
        rule = LoseOnce(way, kind, then)
        self.rule = rule
        return rule

    def close(self) -> None:
        """End the proxy."""
        self._closing = True
        _shut(self._listener)
        self._flowing.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    # -- the proxy -----------------------------------------------------------------------------

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="broken-link", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            self.connections += 1
            self.connected_at.append(time.monotonic())
            self._connect(client)
        self._listener.close()

    def _connect(self, client: socket.socket) -> None:
        host, _, port = self.target.removeprefix("tcp://").rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            _shut(client)
            client.close()
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets |= {client, server}
        pair = _Pair(client, server)
        self._start(lambda: self._pump(Way.UP, client, server, pair))
        self._start(lambda: self._pump(Way.DOWN, server, client, pair))

    def _pump(self, way: Way, source: socket.socket, sink: socket.socket, pair: _Pair) -> None:
        try:
            for message, kind in _messages(source):
                self._flowing.wait()
                if self.rule(way, kind) is Fate.LOSE:
                    break
                self._forward(message, sink)
        except OSError:
            pass
        finally:
            with self._lock:
                self._sockets -= {source, sink}
            _shut(source)
            _shut(sink)
            pair.done()

    def _forward(self, message: bytes, sink: socket.socket) -> None:
        if not self.rate:
            sink.sendall(message)
            return
        for start in range(0, len(message), SLICE):
            piece = message[start : start + SLICE]
            sink.sendall(piece)
            time.sleep(len(piece) / self.rate if self.rate else 0)


class _Pair:
    """Closes both ends of a connection once neither way is in use."""

    def __init__(self, *ends: socket.socket) -> None:
        self._ends = ends
        self._open = 2
        self._lock = threading.Lock()

    def done(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                for end in self._ends:
                    end.close()


def _messages(source: socket.socket) -> Iterator[tuple[bytes, Kind | None]]:
    """Yield each whole ZMTP message (the greeting and commands too) and its kind."""
    reader = source.makefile("rb", buffering=1 << 16)
    with reader:
        for size in GREETING:
            part = reader.read(size)
            if len(part) < size:
                return
            yield part, None
        while True:
            message, first, flags = b"", b"", MORE
            while flags & MORE:
                head = reader.read(1)
                if not head:
                    return
                flags = head[0]
                width = 8 if flags & LONG else 1
                length = reader.read(width)
                body = reader.read(int.from_bytes(length, "big"))
                message += head + length + body
                if not first and not flags & COMMAND:
                    first = body
            yield message, _kind(first)


def _kind(header: bytes) -> Kind | None:
    if len(header) > 3 and header[:2] == b"OL":
        with contextlib.suppress(ValueError):
            return Kind(header[3])
    return None


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
