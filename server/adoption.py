"""Handing a session to another client: does the old one live, and where begins the new log."""

from __future__ import annotations

import time
from dataclasses import replace

from outlast.errors import OutlastError, RestoreFailed
from outlast.server.channel import Channel, Json
from outlast.server.datalink import DataLink
from outlast.server.epochs import EpochKeeper
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.schema import Kind

#: A client that answers nothing for this long may be replaced.
SILENCE = 1.0  # seconds


class Adoption:
    """A worker's part of an adoption; the gateway asks for its steps one by one."""

    def __init__(
        self,
        host: HostSession,
        executor: Executor,
        epochs: EpochKeeper,
        link: DataLink,
        channel: Channel,
    ) -> None:
        self._host = host
        self._executor = executor
        self._epochs = epochs
        self._link = link
        self._channel = channel
        #: The probe under way: request, and when the client was asked.
        self._probe: tuple[Json, float] | None = None

    def probe(self, request: Json) -> None:
        """Ask the attached client for a sign of life; `step` tells what came of it."""
        now = time.monotonic()
        self._probe = (request, now)
        if self._host.peer is not None:
            ping = wire.pack_message(
                Kind.PING, generation=self._host.generation, stamp=int(now * 1e6)
            )
            self._link.send(self._host.peer, [ping])
        self.step()

    def step(self) -> None:
        """Answer a probe as soon as it is decided."""
        if self._probe is None:
            return
        request, asked = self._probe
        now = time.monotonic()
        peer = self._host.peer
        alive = peer is not None and self._link.silence(peer) < now - asked
        if alive or peer is None or now - asked >= SILENCE:
            self._probe = None
            self._reply(request, alive=alive)

    def prepare(self, request: Json) -> None:
        """Take the epoch from which the new client's log begins.

        The old client's replies are kept until `complete`: if the adoption fails, it may
        come back.
        """
        host = self._host
        host.lost()
        if self._executor.poisoned:
            # No epoch can be taken here; the gateway starts from the stored one instead.
            self._reply(request, poisoned=True)
        elif host.applied == self._epochs.last_seq:
            self._reply(request, poisoned=False)
        else:
            self._epochs.begin(lambda error: self._taken(request, error))

    def complete(self, incarnation: str) -> None:
        """Begin anew for the new client, whose ownership is durable now."""
        self._executor.rest.end()  # what the old client was owed is owed no more
        self._host.adopted()
        self._epochs.identity = replace(
            self._epochs.identity, incarnation=bytes.fromhex(incarnation)
        )

    def _taken(self, request: Json, error: OutlastError | None) -> None:
        if error is None:
            self._reply(request, poisoned=False)
        else:
            self._reply(request, code=RestoreFailed.code, error=str(error))

    def _reply(self, request: Json, **fields: object) -> None:
        self._channel.send({"kind": "reply", "to": request["id"], **fields})
