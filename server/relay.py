"""The relay: copies frames between a client of the gateway's port and its worker.

It holds no session state: the worker decides who may speak, whatever the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from outlast.messages import stay_in_cache
from outlast.server.datalink import MAX_MESSAGE, RETRY
from outlast.session import wire
from outlast.session.schema import Kind

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

BURST = 256
#: Messages (of 1 MiB or so at most) that wait here for a client that does not read.
QUEUE = 16


class Relay:
    """Pairs of a client's routing id and a DEALER to its worker."""

    def __init__(self, gateway: Gateway, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._gateway = gateway
        self._context = context
        self._routes: dict[bytes, zmq.Socket[bytes]] = {}
        self._endpoints: dict[bytes, str] = {}

    def open(self, peer: bytes, endpoint: str) -> None:
        """Relay everything from ``peer`` to the worker at ``endpoint`` from now on."""
        # A worker has one client: whoever was relayed to it before is fenced, or gone.
        for other in [p for p, e in self._endpoints.items() if e == endpoint]:
            self.drop(other)
        self.drop(peer)
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.maxmsgsize = MAX_MESSAGE
        dealer.rcvhwm = QUEUE
        dealer.reconnect_ivl = -1  # another connection is another attachment
        stay_in_cache(dealer, endpoint)
        dealer.connect(endpoint)
        self._routes[peer] = dealer
        self._endpoints[peer] = endpoint
        self._gateway.watch(dealer, lambda: self._back(peer, dealer))

    def forward(self, peer: bytes, frames: list[bytes]) -> bool:
        """Pass a client's message on; return False if it is not relayed or says HELLO."""
        dealer = self._routes.get(peer)
        if dealer is None:
            return False
        if len(frames[0]) > 3 and frames[0][3] == Kind.HELLO:
            self.drop(peer)
            return False
        try:
            dealer.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            # A loss in the middle of the order: only a new attachment can go on.
            self.drop(peer)
            return False
        return True

    def drop(self, peer: bytes) -> None:
        """Stop relaying for a client."""
        self._endpoints.pop(peer, None)
        dealer = self._routes.pop(peer, None)
        if dealer is not None:
            self._gateway.unwatch(dealer)
            dealer.close(0)

    def worker_gone(self, endpoints: list[str]) -> None:
        """Tell the clients of a worker that ended, whose own connection still stands."""
        for peer in [p for p, endpoint in self._endpoints.items() if endpoint in endpoints]:
            self.drop(peer)
            bye = wire.pack_message(Kind.BYE, generation=0, end=0, reason="the worker ended")
            self._gateway.send(peer, [bye])

    def close(self) -> None:
        """Stop relaying."""
        for peer in list(self._routes):
            self.drop(peer)

    def _back(self, peer: bytes, dealer: zmq.Socket[bytes]) -> None:
        for _ in range(BURST):
            try:
                frames = dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not self._deliver(peer, dealer, frames):
                return

    def _deliver(self, peer: bytes, dealer: zmq.Socket[bytes], frames: list[bytes]) -> bool:
        """Hand frames to a client; a full queue holds back the worker, nothing is dropped."""
        try:
            self._gateway.send_now(peer, frames)
        except zmq.Again:
            self._gateway.unwatch(dealer)
            self._gateway.after(RETRY, lambda: self._again(peer, dealer, frames))
            return False
        except zmq.ZMQError:
            self.drop(peer)
            return False
        return True

    def _again(self, peer: bytes, dealer: zmq.Socket[bytes], frames: list[bytes]) -> None:
        if self._routes.get(peer) is dealer and self._deliver(peer, dealer, frames):
            self._gateway.watch(dealer, lambda: self._back(peer, dealer))
