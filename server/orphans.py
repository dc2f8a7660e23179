"""Anonymous sessions without a worker: the journal has them from before a restart or a crash.

One with a worker is watched by that (`outlast.server.vigil`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outlast.errors import OutlastError
from outlast.session.ids import is_anonymous
from outlast.session.rows import SessionRow, SessionState

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: How often an orphan is looked for in the time it is kept. Looks count and not the clock:
#: while this server stood still, clients could not come back.
LOOKS = 10
#: A look asks the journal.
LEAST_PAUSE = 0.05  # seconds


class Orphans:
    """Ends anonymous sessions of this server for which no client comes back in time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: How often each one was seen without a worker, one look after the other.
        self._seen: dict[str, int] = {}

    def watch(self) -> None:
        """Begin to look, if sessions are not kept for ever."""
        if self._gateway.config.linger:
            pause = max(LEAST_PAUSE, self._gateway.config.linger / LOOKS)
            self._gateway.after(pause, self._look)

    def _look(self) -> None:
        if not self._gateway.draining:
            server_id = self._gateway.server_id
            self._gateway.database.submit(
                lambda store: store.sessions(server_id, SessionState.ACTIVE), self._found
            )

    def _found(self, rows: list[SessionRow] | None, error: OutlastError | None) -> None:
        if error is not None:
            log.warning("no look for orphans: %s", error, extra={"action": "orphans"})
        held = self._gateway.sessions.held
        orphans = [row.id for row in rows or () if is_anonymous(row.id) and not held(row.id)]
        self._seen = {orphan: self._seen.get(orphan, 0) + 1 for orphan in orphans}
        for orphan in [o for o, looks in self._seen.items() if looks > LOOKS]:
            del self._seen[orphan]
            self._gateway.attachments.end_orphan(orphan)
        self.watch()
