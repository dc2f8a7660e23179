"""Epoch rows: the commit of a checkpoint, and which ones may be removed.

Epochs count in the order of their commits, not of their seq: after a fall-back to an older
one the next commit may stand at a lower seq than one that is given up. The functions work
inside the caller's transaction, which has checked the token.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update

from outlast.errors import CheckpointError
from outlast.session.models import epochs, sessions
from outlast.session.rows import EpochRow, SessionState

#: So many of the newest verified epochs are never removed.
KEPT = 2

_COLUMNS = [epochs.c[name] for name in EpochRow.__slots__]


def commit(connection: Connection, session_id: str, row: EpochRow) -> None:
    """Add an epoch; the same one again is a no-op that may turn it verified.

    Raises
    ------
    CheckpointError
        Another epoch has this number.
    """
    found = _find(connection, session_id, [row.epoch])
    if not found:
        connection.execute(epochs.insert().values(session=session_id, **asdict(row)))
        return
    if (found[0].token, found[0].seq, found[0].location) != (row.token, row.seq, row.location):
        raise CheckpointError(
            f"epoch {row.epoch} of session {session_id!r} was committed at seq {found[0].seq} "
            f"under token {found[0].token}; the number cannot be used again"
        )
    if row.verified and not found[0].verified:
        connection.execute(
            update(epochs).where(_named(session_id, [row.epoch])).values(verified=True)
        )


def usable(connection: Connection, session_id: str) -> list[EpochRow]:
    """Return the epochs that a restore may use, newest first."""
    query = (
        select(*_COLUMNS)
        .where(epochs.c.session == session_id)
        .where(epochs.c.verified, epochs.c.deleting_since.is_(None))
        .order_by(epochs.c.epoch.desc())
    )
    return [EpochRow(*row) for row in connection.execute(query)]


def every(connection: Connection, session_id: str) -> list[EpochRow]:
    """Return all rows, newest first."""
    query = select(*_COLUMNS).where(epochs.c.session == session_id)
    return [EpochRow(*row) for row in connection.execute(query.order_by(epochs.c.epoch.desc()))]


def recoverable_seq(connection: Connection, session_id: str) -> int:
    """Return the seq up to which a client may drop its log: that of the older kept epoch."""
    newest = usable(connection, session_id)[:KEPT]
    return min(row.seq for row in newest) if len(newest) == KEPT else 0


def disqualify_after(connection: Connection, session_id: str, seq: int) -> None:
    """Take away from restores what was committed beyond ``seq``, where the session goes on."""
    connection.execute(
        update(epochs)
        .where(epochs.c.session == session_id, epochs.c.seq > seq)
        .values(verified=False)
    )


def mark_deleting(
    connection: Connection, session_id: str, numbers: Collection[int]
) -> list[EpochRow]:
    """Mark epochs for removal, except the kept ones; return those that may be removed."""
    kept = {row.epoch for row in usable(connection, session_id)[:KEPT]}
    return _mark(connection, session_id, [number for number in numbers if number not in kept])


def mark_all_deleting(connection: Connection, session_id: str) -> None:
    """Mark every epoch of a session that ended."""
    _mark(connection, session_id, [row.epoch for row in every(connection, session_id)])


def left_by_ended(connection: Connection, owner: str) -> list[str]:
    """Return the ended sessions of a server that have epochs yet."""
    query = select(sessions.c.id).where(
        sessions.c.owner == owner,
        sessions.c.state == SessionState.ENDED,
        sessions.c.id.in_(select(epochs.c.session)),
    )
    return list(connection.scalars(query.order_by(sessions.c.id)))


def forget(connection: Connection, session_id: str, numbers: Collection[int]) -> None:
    """Drop the rows of removed epochs; one that is not marked stays."""
    marked = epochs.c.deleting_since.is_not(None)
    connection.execute(delete(epochs).where(_named(session_id, numbers), marked))


def _mark(connection: Connection, session_id: str, numbers: Sequence[int]) -> list[EpochRow]:
    connection.execute(
        update(epochs)
        .where(_named(session_id, numbers), epochs.c.deleting_since.is_(None))
        .values(deleting_since=time.time())
    )
    return _find(connection, session_id, numbers)


def _find(connection: Connection, session_id: str, numbers: Sequence[int]) -> list[EpochRow]:
    query = select(*_COLUMNS).where(_named(session_id, numbers)).order_by(epochs.c.epoch)
    return [EpochRow(*row) for row in connection.execute(query)]


def _named(session_id: str, numbers: Collection[int]) -> ColumnElement[bool]:
    return and_(epochs.c.session == session_id, epochs.c.epoch.in_(list(numbers)))
