"""Session rows, and the token check that every write for a session begins with.

The functions work inside the caller's transaction. A row that was locked here keeps its
token until that transaction ends.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, select, update

from outlast.errors import SessionNotFound, TokenSuperseded
from outlast.session.models import sessions
from outlast.session.rows import SessionRow, SessionState

_COLUMNS = [sessions.c[name] for name in SessionRow.__slots__]


def current(
    connection: Connection, session_id: str, token: int, *, ended_too: bool = False
) -> SessionRow:
    """Read and lock a session that ``token`` may still change.

    Raises
    ------
    TokenSuperseded
        Another server has claimed the session since.
    SessionNotFound
        There is none of this id, or it has ended.
    """
    row = (locked if ended_too else alive)(connection, session_id)
    _compare(session_id, token, row.token, row.owner)
    return row


def check(connection: Connection, session_id: str, token: int) -> None:
    """Do what `current` does at less cost, for rows below the session's own."""
    query = select(sessions.c.token, sessions.c.owner).where(
        sessions.c.id == session_id, sessions.c.state != SessionState.ENDED
    )
    found = connection.execute(query.with_for_update(read=True)).first()
    if found is None:
        raise _not_found(session_id)
    _compare(session_id, token, found.token, found.owner)


def alive(connection: Connection, session_id: str) -> SessionRow:
    """Read and lock a session that has not ended."""
    row = locked(connection, session_id)
    if row.state is SessionState.ENDED:
        raise SessionNotFound(f"session {session_id!r} has ended", session_id=session_id)
    return row


def locked(connection: Connection, session_id: str) -> SessionRow:
    """Read a session and keep others from changing it until the transaction ends."""
    return _only(connection.execute(_lock(session_id)).first(), session_id)


def lock_if_any(connection: Connection, session_id: str) -> None:
    """Keep others from changing a session that may not exist."""
    connection.execute(_lock(session_id))


def read(connection: Connection, session_id: str) -> SessionRow:
    """Read a session."""
    return _only(connection.execute(_one(session_id)).first(), session_id)


def read_all(
    connection: Connection, owner: str | None = None, state: SessionState | None = None
) -> list[SessionRow]:
    """Read every session, or those of one server or in one state, by id."""
    query = select(*_COLUMNS).order_by(sessions.c.id)
    if owner is not None:
        query = query.where(sessions.c.owner == owner)
    if state is not None:
        query = query.where(sessions.c.state == state)
    return [_value(found) for found in connection.execute(query)]


def change(connection: Connection, row: SessionRow, **values: Any) -> SessionRow:
    """Write columns of a locked session and return it with them."""
    values.setdefault("updated_at", time.time())
    connection.execute(update(sessions).where(sessions.c.id == row.id).values(values))
    return replace(row, **values)


def _one(session_id: str) -> Select[Any]:
    return select(*_COLUMNS).where(sessions.c.id == session_id)


def _lock(session_id: str) -> Select[Any]:
    # Rows below the session may still be inserted: `key_share` leaves their keys alone.
    return _one(session_id).with_for_update(key_share=True)


def _only(found: Row[Any] | None, session_id: str) -> SessionRow:
    if found is None:
        raise _not_found(session_id)
    return _value(found)


def _value(found: Row[Any]) -> SessionRow:
    values = found._asdict()
    return SessionRow(**{**values, "state": SessionState(values["state"])})


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no session {session_id!r}", session_id=session_id)


def _compare(session_id: str, token: int, newest: int, owner: str) -> None:
    if token != newest:
        raise TokenSuperseded(
            f"token {token} of session {session_id!r} is superseded by {newest} of server {owner}",
            session_id=session_id,
            token=token,
            current=newest,
            owner=owner,
        )
