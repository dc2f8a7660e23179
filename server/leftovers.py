"""Checkpoints of sessions that ended just before their server did: they are removed by the next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: How long after the start, and after one session, the next is looked for. Each takes a worker
#: for a moment, and clients that come back after a restart need theirs first.
PAUSE = 2.0  # seconds
#: How soon a journal that did not answer is asked again.
RETRY = 30.0  # seconds


class Leftovers:
    """Has what is stored of this server's ended sessions removed, one session after the other."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: A store that refuses is not asked again before the next start.
        self._tried: set[str] = set()

    def watch(self) -> None:
        """Look soon."""
        self._gateway.after(PAUSE, self._look)

    def _look(self) -> None:
        if not self._gateway.draining:
            server_id = self._gateway.server_id
            self._gateway.database.submit(lambda store: store.leftovers(server_id), self._found)

    def _found(self, sessions: list[str] | None, error: OutlastError | None) -> None:
        if error is not None:
            log.warning("no look for leftovers: %s", error, extra={"action": "leftovers"})
            self._gateway.after(RETRY, self._look)
            return
        new = [session for session in sessions or () if session not in self._tried]
        if new:
            self._tried.add(new[0])
            self._gateway.attachments.clear(new[0])
            self.watch()
