"""Where a client session stands."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where a client session stands."""

    DETACHED = "detached"
    ATTACHED = "attached"
    CLOSED = "closed"
