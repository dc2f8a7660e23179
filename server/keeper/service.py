"""The keeper's loop: one thread, one socket, every request answered at once."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from outlast.server.keeper.holdings import Chunk, Holding, Holdings, Refused
from outlast.server.keeper.messages import BadMessage, Json, close_all, receive, send
from outlast.server.unix_sockets import peer_of

#: How long one peer may hold up all others, by not finishing what it sends or not reading.
PATIENCE = 1.0  # seconds
#: How often memory that nobody holds is looked for.
TICK = 1.0  # seconds
#: How often it is for so long behind the end of a connection: its process may be dying.
SOON, SOON_FOR = 0.02, 2.0  # seconds

Answer = tuple[Json, list[int]]


class Service:
    """Serves the keeper's socket.

    Parameters
    ----------
    listener : socket.socket
        Bound and listening; closed at the end.
    ttl : float
        Seconds for which memory without a living holder is kept.
    idle : float
        Seconds without memory and connections after which the keeper ends.
    reachable : callable
        Says whether the socket can still be found; where not, nobody could take over what is
        held, and another keeper could not start.
    """

    def __init__(
        self,
        listener: socket.socket,
        ttl: float,
        idle: float,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.holdings = Holdings(ttl)
        self._reachable = reachable
        self._listener = listener
        self._idle = idle
        self._used = time.monotonic()
        self._left = 0.0
        self._peers: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._operations: dict[str, Callable[[Json, list[int], int], Answer]] = {
            "add": self._add,
            "claim": self._claim,
            "drop": self._drop,
            "end": self._end,
            "keep": self._keep,
            "list": self._list,
            "rest": self._rest,
            "seal": self._seal,
            "unseal": self._unseal,
        }

    def run(self) -> None:
        """Serve until nothing is held and nobody has asked for a while."""
        try:
            while not self._over():
                for key, _ in self._selector.select(min(self._tick(), self._idle)):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._serve(key.fileobj)
                self.holdings.expire()
        finally:
            self.close()

    def close(self) -> None:
        """Give everything back."""
        for peer in list(self._peers):
            self._leave(peer)
        self._listener.close()
        self._selector.close()
        self.holdings.close()

    def _tick(self) -> float:
        return SOON if time.monotonic() - self._left < SOON_FOR and len(self.holdings) else TICK

    def _over(self) -> bool:
        if self._peers or len(self.holdings):
            self._used = time.monotonic()
        return time.monotonic() - self._used > self._idle or not self._reachable()

    def _accept(self) -> None:
        with suppress(OSError):
            peer, _ = self._listener.accept()
            peer.settimeout(PATIENCE)
            _, uid = peer_of(peer)
            if uid not in (0, os.getuid()):
                peer.close()
                return
            self._peers.add(peer)
            self._selector.register(peer, selectors.EVENT_READ)

    def _leave(self, peer: socket.socket) -> None:
        self._left = time.monotonic()
        self._peers.discard(peer)
        with suppress(KeyError, ValueError):
            self._selector.unregister(peer)
        peer.close()

    def _serve(self, peer: socket.socket) -> None:
        try:
            request = receive(peer)
            if request is None:
                self._leave(peer)
                return
            message, fds = request
            pid, _ = peer_of(peer)
            try:
                answer, out = self._answer(message, fds, pid)
                send(peer, answer, out)
            finally:
                close_all(fds)
        except (OSError, BadMessage):
            self._leave(peer)

    def _answer(self, message: Json, fds: list[int], pid: int) -> Answer:
        operation = self._operations.get(str(message.get("op")))
        try:
            if operation is None:
                raise Refused("invalid", f"no operation {message.get('op')!r}")
            return operation(message, fds, pid)
        except Refused as refused:
            return {"error": refused.reason, "text": str(refused)}, []

    # -- operations ------------------------------------------------------------------------------

    def _claim(self, message: Json, fds: list[int], pid: int) -> Answer:
        holding = self.holdings.claim(_session(message), _number(message, "token"), pid)
        manifest = [holding.manifest] if holding.sealed else []
        fds.append(_index(holding))  # closed with what came
        chunks = [chunk.fd for chunk in holding.chunks.values()]
        out = [holding.page, fds[-1], *manifest, *chunks]
        return {"sealed": bool(manifest), "marks": True}, out

    def _keep(self, message: Json, fds: list[int], pid: int) -> Answer:
        seconds = message.get("seconds")
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise Refused("invalid", "seconds is no positive number")
        self.holdings.ttl = seconds
        return {}, []

    def _list(self, message: Json, fds: list[int], pid: int) -> Answer:
        """Return what is held, one part of it a call: a message has its limit."""
        start, count = _number(message, "start"), 100
        held = self.holdings.describe()
        return {"holdings": held[start : start + count], "all": len(held)}, []

    def _add(self, message: Json, fds: list[int], pid: int) -> Answer:
        holding = self._mine(message, pid)
        if len(fds) != 1:
            raise Refused("invalid", "a chunk comes with one descriptor")
        device, address = _number(message, "device"), _number(message, "address")
        if (device, address) in holding.chunks:
            raise Refused("invalid", f"there is a chunk at {address:#x} already")
        size = _number(message, "size")
        holding.chunks[device, address] = Chunk(device, address, size, fds.pop())
        holding.drop_manifest()
        return {}, []

    def _drop(self, message: Json, fds: list[int], pid: int) -> Answer:
        holding = self._mine(message, pid)
        chunk = holding.chunks.pop((_number(message, "device"), _number(message, "address")), None)
        if chunk is None:
            raise Refused("unknown", "no such chunk")
        os.close(chunk.fd)
        holding.drop_manifest()
        return {}, []

    def _seal(self, message: Json, fds: list[int], pid: int) -> Answer:
        """Take the seal of a session that is left for good."""
        return self._take_seal(message, fds, pid, 0)

    def _rest(self, message: Json, fds: list[int], pid: int) -> Answer:
        """Take the seal of a session that may go on: it is good while the page has its mark."""
        mark = _number(message, "mark")
        if not mark:
            raise Refused("invalid", "0 is no mark")
        return self._take_seal(message, fds, pid, mark)

    def _take_seal(self, message: Json, fds: list[int], pid: int, mark: int) -> Answer:
        holding = self._mine(message, pid)
        if len(fds) != 1:
            raise Refused("invalid", "a seal comes with one descriptor")
        seq = _number(message, "seq")
        holding.set_manifest(fds.pop(), seq, mark)
        return {}, []

    def _unseal(self, message: Json, fds: list[int], pid: int) -> Answer:
        self._mine(message, pid).drop_manifest()
        return {}, []

    def _end(self, message: Json, fds: list[int], pid: int) -> Answer:
        return {"held": self.holdings.end(_session(message), _number(message, "token"))}, []

    def _mine(self, message: Json, pid: int) -> Holding:
        return self.holdings.held_by(_session(message), _number(message, "token"), pid)


def _index(holding: Holding) -> int:
    """Return a descriptor of the list of chunks: it may be longer than a message."""
    index = os.memfd_create("outlast-index", os.MFD_CLOEXEC)
    with open(os.dup(index), "wb") as file:
        file.write(json.dumps([chunk.describe() for chunk in holding.chunks.values()]).encode())
    return index


def _session(message: Json) -> str:
    session = message.get("session")
    if not isinstance(session, str) or not 0 < len(session) <= 128:
        raise Refused("invalid", "a session is named by 1 to 128 characters")
    return session


def _number(message: Json, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise Refused("invalid", f"{name} is no unsigned number")
    return value
