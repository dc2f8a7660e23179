"""Whether anybody still comes for a session that only its own program could come back to."""

from __future__ import annotations

import time

from outlast.server.channel import Channel
from outlast.server.epochs import EpochKeeper
from outlast.session.host import HostSession

#: Time between two looks that counts at most: while the worker itself stood still, clients
#: could not come back.
LONGEST_STEP = 1.0  # seconds


class Vigil:
    """Tells the gateway of a session to which nobody has been attached for long.

    Parameters
    ----------
    host : HostSession
        Knows who is attached.
    epochs : EpochKeeper
        Is left to finish what it saves.
    channel : Channel
        To the gateway.
    linger : float
        Seconds; 0: for ever.
    """

    def __init__(
        self, host: HostSession, epochs: EpochKeeper, channel: Channel, linger: float
    ) -> None:
        self._host = host
        self._epochs = epochs
        self._channel = channel
        self._linger = linger
        self._generation = host.generation
        self._looked_at = time.monotonic()
        self._alone = 0.0

    def step(self) -> None:
        """Look; what is told once is told again if somebody has come in between."""
        host, now = self._host, time.monotonic()
        passed = min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        if host.peer is not None or host.generation != self._generation:
            # Attached, or on the way: the gateway has let a client in.
            self._generation = host.generation
            self._alone = 0.0
            return
        self._alone += passed
        if self._linger and self._alone >= self._linger and not self._epochs.busy:
            self._alone = 0.0
            self._channel.send({"kind": "abandoned"})
