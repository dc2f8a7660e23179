"""What tests of the journal share: a clock to turn, rows to write, processes to start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from outlast.session.leases import LeaseClock
from outlast.session.rows import EpochRow
from outlast.session.store import Store

INCARNATION = b"client process 1"
OTHER_INCARNATION = b"client process 2"
TOKEN_HASH = b"\x01" * 32
TTL = 10.0  # seconds

#: Values at which a signed or floating representation breaks.
EDGES = (0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)


class ManualClock(LeaseClock):
    """A lease clock that moves when a test says so."""

    name = "manual"

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self, connection: Connection) -> float:
        return self.time


def register(store: Store, *server_ids: str, ttl: float = TTL) -> None:
    for server_id in server_ids:
        store.register_server(server_id, "gpu-host", f"tcp://{server_id}:14833", ttl)


def create(store: Store, session_id: str = "train", server_id: str = "a") -> int:
    """Make a session of server ``a`` and return its fencing token."""
    register(store, server_id)
    return store.create_session(session_id, INCARNATION, TOKEN_HASH, server_id).token


def epoch(number: int, seq: int, **changes: Any) -> EpochRow:
    values: dict[str, Any] = {
        "epoch": number,
        "seq": seq,
        "token": 1,
        "provider": "directory",
        "location": f"train/1/{number}",
        "size": 4096,
        "digest": "00" * 32,
        "verified": True,
        "created_at": 0.0,
    }
    return EpochRow(**values | changes)


@contextmanager
def journal_process(role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a role of ``journal_process.py``; it is dead when the block ends."""
    script = Path(__file__).with_name("journal_process.py")
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(script), role, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
