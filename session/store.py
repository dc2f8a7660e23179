"""The journal: what sessions exist, who serves them, and what they hold.

Every method is one transaction. Writes for a session name its fencing token and fail as
`TokenSuperseded` when another server has claimed it since. A `Store` is used by one thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from sqlalchemy import Connection, Engine, select

from outlast.errors import SessionBusy
from outlast.session import epochs, fence, leases, records
from outlast.session.database import LOCK_TIMEOUT, open_engine
from outlast.session.models import servers, sessions
from outlast.session.rows import (
    AllocationRow,
    Entry,
    EpochRow,
    HandleRow,
    ServerRow,
    SessionRow,
    SessionState,
)


class Store:
    """The journal in one database.

    Its errors are `JournalUnavailable` (retryable; every method may be called again),
    `JournalCorrupt` and `JournalValueError`, beside those named below.

    Parameters
    ----------
    engine : Engine
        From `open_engine`, after ``outlast.migrations.upgrade(engine)``.
    clock : LeaseClock, optional
        Where lease times come from; by default what fits the database.
    """

    def __init__(self, engine: Engine, *, clock: leases.LeaseClock | None = None) -> None:
        self.engine = engine
        self.clock = clock or leases.clock_for(engine.dialect.name)
        self._reading = engine.execution_options(read_only=True)

    @classmethod
    def open(cls, url: str, *, lock_timeout: float = LOCK_TIMEOUT) -> Store:
        """Open the journal at a database URL.

        Raises
        ------
        ConfigError
            The URL cannot be used.
        """
        return cls(open_engine(url, lock_timeout=lock_timeout))

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    # -- servers -----------------------------------------------------------------

    def register_server(self, server_id: str, host: str, endpoint: str, ttl: float) -> ServerRow:
        """Announce a server and give it a lease of ``ttl`` seconds."""
        with self.engine.begin() as connection:
            return leases.register(connection, self.clock, server_id, host, endpoint, ttl)

    def renew_lease(self, server_id: str, ttl: float) -> bool:
        """Extend a lease to ``ttl`` seconds from now.

        Returns
        -------
        bool
            False when it had ended: the server must register again, and others may have
            claimed sessions since, whose tokens are higher then.
        """
        with self.engine.begin() as connection:
            return leases.renew(connection, self.clock, server_id, ttl)

    def release_server(self, server_id: str) -> None:
        """End a server's lease at its clean stop."""
        with self.engine.begin() as connection:
            leases.end(connection, server_id)

    def servers(self) -> list[ServerRow]:
        """Return every server known, by id."""
        with self._reading.begin() as connection:
            found = connection.execute(select(servers).order_by(servers.c.id)).mappings().all()
            now = self.clock.now(connection)
            return [leases.server_row(row, self.clock, now) for row in found]

    # -- sessions ----------------------------------------------------------------

    def create_session(
        self, session_id: str, incarnation: bytes, token_hash: bytes, server_id: str
    ) -> SessionRow:
        """Make a session, or return it when this incarnation has made it before.

        An ended session is replaced; its numbers go on, so its files and its fenced
        servers cannot be mistaken for the new one's.

        Raises
        ------
        SessionBusy
            Another incarnation has the session.
        LeaseLost
            The server holds no lease.
        """
        now = time.time()
        fresh = {
            "incarnation": incarnation,
            "resume_token_hash": token_hash,
            "owner": server_id,
            "state": SessionState.ACTIVE,
            "failed_seq": None,
            "failed_reason": None,
            "created_at": now,
            "updated_at": now,
        }
        first = {"id": session_id, "token": 1, "generation": 0, "last_epoch": 0}
        with self.engine.begin() as connection:
            # Sessions are locked before servers everywhere, so that nobody dead-locks.
            fence.lock_if_any(connection, session_id)
            leases.require(connection, self.clock, server_id, server_id)
            # Two creators may get here at once: the second insert waits, then does nothing.
            insert = records.insert_into(connection.dialect.name, sessions).values(**first, **fresh)
            connection.execute(insert.on_conflict_do_nothing())
            row = fence.locked(connection, session_id)
            if row.state is SessionState.ENDED:
                records.cut_back(connection, session_id, 0)
                return fence.change(connection, row, token=row.token + 1, **fresh)
            if row.incarnation != incarnation:
                raise SessionBusy(
                    f"session {session_id!r} exists and belongs to another client",
                    session_id=session_id,
                    owner=row.owner,
                )
            return row

    def session(self, session_id: str) -> SessionRow:
        """Return one session.

        Raises
        ------
        SessionNotFound
            There is none of this id.
        """
        with self._reading.begin() as connection:
            return fence.read(connection, session_id)

    def sessions(
        self, owner: str | None = None, state: SessionState | None = None
    ) -> list[SessionRow]:
        """Return all sessions, or those of one server or in one state, by id."""
        with self._reading.begin() as connection:
            return fence.read_all(connection, owner, state)

    def claim(self, session_id: str, server_id: str, *, seq: int | None = None) -> SessionRow:
        """Take a session for a server under a new fencing token, cut back to an epoch.

        Parameters
        ----------
        seq : int, optional
            Where the session will go on: the seq of the epoch that will be restored, by
            default the newest usable one (0 without any). What the journal knows beyond it
            is dropped and epochs beyond it are not used again.

        Raises
        ------
        SessionBusy
            Its server is alive; ``owner`` and ``retry_after`` (seconds) say whose lease it is.
        SessionNotFound
            There is none of this id, or it has ended.
        LeaseLost
            The claiming server holds no lease.
        """
        with self.engine.begin() as connection:
            row = fence.alive(connection, session_id)
            owner = leases.require(connection, self.clock, server_id, row.owner)
            if row.owner != server_id and owner.lease_left > 0:
                raise SessionBusy(
                    f"session {session_id!r} belongs to server {row.owner} at {owner.endpoint}, "
                    f"whose lease ends in {owner.lease_left:.1f} s",
                    session_id=session_id,
                    owner=row.owner,
                    retry_after=owner.lease_left,
                )
            _cut_back(connection, session_id, seq)
            return fence.change(connection, row, owner=server_id, token=row.token + 1)

    def attach(self, session_id: str, token: int, incarnation: bytes) -> SessionRow:
        """Start a new attachment: the next generation, durable.

        Raises
        ------
        SessionBusy
            The session belongs to another incarnation.
        """
        with self.engine.begin() as connection:
            row = fence.current(connection, session_id, token)
            if row.incarnation != incarnation:
                raise SessionBusy(
                    f"session {session_id!r} belongs to another client", session_id=session_id
                )
            return fence.change(connection, row, generation=row.generation + 1)

    def adopt(
        self, session_id: str, token: int, incarnation: bytes, token_hash: bytes | None = None
    ) -> SessionRow:
        """Start an attachment of a new incarnation; the old one is fenced off for ever."""
        with self.engine.begin() as connection:
            row = fence.current(connection, session_id, token)
            return fence.change(
                connection,
                row,
                generation=row.generation + 1,
                incarnation=incarnation,
                resume_token_hash=token_hash or row.resume_token_hash,
            )

    def park(self, session_id: str, token: int, seq: int, reason: str) -> SessionRow:
        """Set a session aside because of its call ``seq``; its epochs stay."""
        with self.engine.begin() as connection:
            row = fence.current(connection, session_id, token)
            parked = {"state": SessionState.PARKED, "failed_seq": seq, "failed_reason": reason}
            return fence.change(connection, row, **parked)

    def unpark(self, session_id: str, token: int) -> SessionRow:
        """Let a parked session go on."""
        with self.engine.begin() as connection:
            row = fence.current(connection, session_id, token)
            active = {"state": SessionState.ACTIVE, "failed_seq": None, "failed_reason": None}
            return fence.change(connection, row, **active)

    def end_session(self, session_id: str, token: int) -> None:
        """End a session for good; its epochs may be removed."""
        with self.engine.begin() as connection:
            row = fence.current(connection, session_id, token, ended_too=True)
            if row.state is not SessionState.ENDED:
                records.cut_back(connection, session_id, 0)
                epochs.mark_all_deleting(connection, session_id)
                fence.change(connection, row, state=SessionState.ENDED)

    # -- what a session holds ----------------------------------------------------

    def record(self, session_id: str, token: int, entries: Iterable[Entry]) -> None:
        """Write what calls created and ended; the same entries again change nothing."""
        with self.engine.begin() as connection:
            fence.check(connection, session_id, token)
            records.write(connection, session_id, entries)

    def handles(self, session_id: str) -> list[HandleRow]:
        """Return the live handles in the order of their creation."""
        with self._reading.begin() as connection:
            return records.live_handles(connection, session_id)

    def allocations(self, session_id: str) -> list[AllocationRow]:
        """Return the live allocations by address."""
        with self._reading.begin() as connection:
            return records.live_allocations(connection, session_id)

    def allocation_at(self, session_id: str, address: int) -> AllocationRow | None:
        """Return the live allocation that contains an address."""
        with self._reading.begin() as connection:
            return records.allocation_at(connection, session_id, address)

    # -- epochs ------------------------------------------------------------------

    def commit_epoch(self, session_id: str, token: int, row: EpochRow) -> int:
        """Commit an epoch: from here on a restore may use it.

        Returns
        -------
        int
            The recoverable seq: that of the older of the two newest verified epochs, or 0.

        Raises
        ------
        CheckpointError
            The epoch's number is taken.
        """
        with self.engine.begin() as connection:
            session = fence.current(connection, session_id, token)
            epochs.commit(connection, session_id, replace(row, token=token))
            if row.epoch > session.last_epoch:
                fence.change(connection, session, last_epoch=row.epoch)
            recoverable = epochs.recoverable_seq(connection, session_id)
            if recoverable:
                records.prune(connection, session_id, recoverable)
            return recoverable

    def epochs(self, session_id: str, *, unusable: bool = False) -> list[EpochRow]:
        """Return the verified epochs that are not being removed, or all, newest first."""
        with self._reading.begin() as connection:
            return (epochs.every if unusable else epochs.usable)(connection, session_id)

    def leftovers(self, owner: str) -> list[str]:
        """Return the ended sessions of a server whose epochs have not been removed, by id."""
        with self._reading.begin() as connection:
            return epochs.left_by_ended(connection, owner)

    def mark_deleting(
        self, session_id: str, token: int, numbers: Collection[int]
    ) -> list[EpochRow]:
        """Mark epochs for removal; the two newest verified ones are left out.

        Returns
        -------
        list of EpochRow
            Those that are marked. Remove their files one lease after `deleting_since`.
        """
        with self.engine.begin() as connection:
            fence.current(connection, session_id, token, ended_too=True)
            return epochs.mark_deleting(connection, session_id, numbers)

    def forget_epochs(self, session_id: str, token: int, numbers: Collection[int]) -> None:
        """Drop the rows of epochs whose files are gone; unmarked ones stay."""
        with self.engine.begin() as connection:
            fence.current(connection, session_id, token, ended_too=True)
            epochs.forget(connection, session_id, numbers)


def _cut_back(connection: Connection, session_id: str, seq: int | None) -> None:
    if seq is None:
        newest = epochs.usable(connection, session_id)[:1]
        seq = newest[0].seq if newest else 0
    records.cut_back(connection, session_id, seq)
    epochs.disqualify_after(connection, session_id, seq)
