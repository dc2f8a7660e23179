"""Leases of servers: who is alive, measured on a clock that nobody can turn back.

One row per server, renewed as one; sessions name their owner. A lease is compared on the
clock it was written from: PostgreSQL's own for all hosts, the time since boot for a SQLite
file (its servers share one host). A lease from another boot has ended with it.

The functions work inside the caller's transaction and lock the rows they read.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, RowMapping, select, text, update

from outlast.errors import LeaseLost
from outlast.session.models import servers
from outlast.session.rows import ServerRow, ServerState

#: Linux names each boot here.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LeaseClock(ABC):
    """Where the time of leases comes from."""

    #: Written beside each time; times of another clock do not compare.
    name: str

    @abstractmethod
    def now(self, connection: Connection) -> float:
        """Return the time in seconds."""


class DatabaseClock(LeaseClock):
    """The database server's clock, one for all hosts."""

    name = "database"

    def now(self, connection: Connection) -> float:
        """Return the database's time, inside a transaction too."""
        query = text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")
        return float(connection.execute(query).scalar_one())


class HostClock(LeaseClock):
    """Seconds since this host's boot; setting the time of day does not move it."""

    def __init__(self) -> None:
        # Without a boot id a reboot would go unseen: the time of day has to do then.
        self._since_boot = BOOT_ID.exists()
        self.name = f"boot {BOOT_ID.read_text().strip()}" if self._since_boot else "unix"

    def now(self, connection: Connection) -> float:
        """Return the seconds since boot, suspended time included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) if self._since_boot else time.time()


def clock_for(dialect: str) -> LeaseClock:
    """Return the lease clock of a kind of database."""
    return DatabaseClock() if dialect == "postgresql" else HostClock()


def register(
    connection: Connection, clock: LeaseClock, server_id: str, host: str, endpoint: str, ttl: float
) -> ServerRow:
    """Write a server's row with a fresh lease."""
    values = {
        "host": host,
        "endpoint": endpoint,
        "state": ServerState.ACTIVE,
        "clock": clock.name,
        "started_at": time.time(),
        "lease_expires": clock.now(connection) + ttl,
    }
    changed = connection.execute(update(servers).where(servers.c.id == server_id).values(values))
    if not changed.rowcount:
        connection.execute(servers.insert().values(id=server_id, **values))
    return read(connection, clock, [server_id])[server_id]


def renew(connection: Connection, clock: LeaseClock, server_id: str, ttl: float) -> bool:
    """Extend a lease that has not ended; return whether it was extended."""
    row = read(connection, clock, [server_id]).get(server_id)
    if row is None or row.lease_left <= 0:
        return False
    connection.execute(
        update(servers)
        .where(servers.c.id == server_id)
        .values(lease_expires=clock.now(connection) + ttl)
    )
    return True


def end(connection: Connection, server_id: str) -> None:
    """End a lease now."""
    released = update(servers).where(servers.c.id == server_id)
    connection.execute(released.values(state=ServerState.RELEASED))


def require(connection: Connection, clock: LeaseClock, server_id: str, owner: str) -> ServerRow:
    """Return the owner's row after checking that ``server_id`` holds a lease itself.

    Raises
    ------
    LeaseLost
        The lease of ``server_id`` has ended.
    """
    rows = read(connection, clock, {server_id, owner})
    mine = rows.get(server_id)
    if mine is None or mine.lease_left <= 0:
        raise LeaseLost(f"server {server_id} holds no lease: register it again", server=server_id)
    return rows[owner]


def read(connection: Connection, clock: LeaseClock, ids: Iterable[str]) -> dict[str, ServerRow]:
    """Read and lock server rows, always in the same order so that nobody dead-locks."""
    query = select(servers).where(servers.c.id.in_(sorted(ids))).order_by(servers.c.id)
    found = connection.execute(query.with_for_update(key_share=True)).mappings().all()
    now = clock.now(connection)
    return {row["id"]: server_row(row, clock, now) for row in found}


def server_row(row: RowMapping, clock: LeaseClock, now: float) -> ServerRow:
    """Make the value of one database row."""
    counts = row["state"] == ServerState.ACTIVE and row["clock"] == clock.name
    return ServerRow(
        id=row["id"],
        host=row["host"],
        endpoint=row["endpoint"],
        state=ServerState(row["state"]),
        lease_left=row["lease_expires"] - now if counts else 0.0,
        started_at=row["started_at"],
    )
