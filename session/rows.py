"""Values that go into the journal and come out of it; no database object leaves the store."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class SessionState(enum.StrEnum):
    """What a session is in."""

    ACTIVE = "active"
    #: One call kills its worker again and again, or cannot be replayed; epochs are kept.
    PARKED = "parked"
    ENDED = "ended"


class ServerState(enum.StrEnum):
    """Whether a server's lease counts."""

    ACTIVE = "active"
    #: Given back at a clean stop.
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session."""

    id: str
    incarnation: bytes
    resume_token_hash: bytes
    owner: str
    token: int
    generation: int
    state: SessionState
    failed_seq: int | None
    failed_reason: str | None
    last_epoch: int
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server; `lease_left` is in seconds, 0 or less when the lease has ended."""

    id: str
    host: str
    endpoint: str
    state: ServerState
    lease_left: float
    started_at: float


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch. `epoch` numbers grow over the life of a session id (`SessionRow.last_epoch`)."""

    epoch: int
    seq: int
    token: int
    provider: str
    location: str
    size: int
    digest: str
    verified: bool
    created_at: float
    deleting_since: float | None = None


@dataclass(frozen=True, slots=True)
class HandleRow:
    """One handle, live while `destroyed_seq` is None."""

    kind: str
    id: int
    generation: int
    recipe: dict[str, Any]
    created_seq: int
    destroyed_seq: int | None


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """One allocation, live while `freed_seq` is None."""

    address: int
    size: int
    device: int
    flags: int
    created_seq: int
    freed_seq: int | None


@dataclass(frozen=True, slots=True)
class HandleCreated:
    """Call `seq` made a handle."""

    kind: str
    id: int
    generation: int
    recipe: dict[str, Any]
    seq: int


@dataclass(frozen=True, slots=True)
class HandleDestroyed:
    """Call `seq` destroyed a handle."""

    kind: str
    id: int
    seq: int


@dataclass(frozen=True, slots=True)
class Allocated:
    """Call `seq` allocated device memory."""

    address: int
    size: int
    device: int
    flags: int
    seq: int


@dataclass(frozen=True, slots=True)
class Freed:
    """Call `seq` freed the allocation at an address."""

    address: int
    seq: int


#: What a worker reports about one call.
Entry = HandleCreated | HandleDestroyed | Allocated | Freed
