"""A server in a thread that answers each kind of message as a test says."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

import zmq

from outlast.session import wire
from outlast.session.schema import Kind
from outlast.session.wire import Message

Answer = Callable[[Message], list[bytes] | None]


class ScriptedServer:
    """A ROUTER that attaches every client to itself, over its one port.

    Parameters
    ----------
    answers : dict
        What to answer to a kind of message instead of (or besides) what a server does.
    generation : int
        The last attachment of the server before this one.
    """

    def __init__(self, answers: dict[Kind, Answer] | None = None, generation: int = 0) -> None:
        self.seen: Counter[Kind] = Counter()
        self.messages: list[Message] = []
        #: When messages of each kind came.
        self.times: defaultdict[Kind, list[float]] = defaultdict(list)
        self._answers: dict[Kind, Answer] = {
            Kind.HELLO: lambda _: [self.welcome()],
            Kind.ATTACH: self._attached,
            **(answers or {}),
        }
        self._generation = generation
        self._peer = b""
        self._stop = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._run, name="scripted-server")

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def welcome(self, endpoints: str = "") -> bytes:
        """Return the next WELCOME; without endpoints the client stays here."""
        self._generation += 1
        return wire.pack_message(
            Kind.WELCOME,
            generation=self._generation,
            window=1 << 20,
            secret=bytes(32),
            heartbeat=1.0,
            timeout=5.0,
            endpoints=endpoints,
            server="scripted",
            devices=[],
        )

    def say(self, *frames: bytes) -> None:
        """Send one more message to whose message is being answered; for use in an answer."""
        self._socket.send_multipart([self._peer, *frames])

    def _attached(self, message: Message) -> list[bytes]:
        fields: dict[str, Any] = {"applied": 0, "recoverable": 0, "restored_from": 0}
        generation = message["generation"]
        return [wire.pack_message(Kind.ATTACHED, generation=generation, inventory={}, **fields)]

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(20):
                continue
            self._peer, *frames = self._socket.recv_multipart()
            message = wire.parse_message(frames)
            self.times[message.kind].append(time.monotonic())
            self.seen[message.kind] += 1
            self.messages.append(message)
            answer = self._answers.get(message.kind, lambda _: None)(message)
            if answer is not None:
                self.say(*answer)
