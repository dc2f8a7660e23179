"""What exists in a session: bulk, repeatable writes of handle and allocation rows.

A worker sends its records again until they are acknowledged, so writing one twice changes
nothing. The functions work inside the caller's transaction, which has checked the token.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, bindparam, delete, select, update
from sqlalchemy.dialects import sqlite

from outlast.session.models import allocations, handles
from outlast.session.rows import (
    Allocated,
    AllocationRow,
    Entry,
    Freed,
    HandleCreated,
    HandleDestroyed,
    HandleRow,
)

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

_HANDLE_COLUMNS = [handles.c[name] for name in HandleRow.__slots__]
_ALLOCATION_COLUMNS = [allocations.c[name] for name in AllocationRow.__slots__]


def insert_into(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that can say what to do about a row that is there already."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    # Late: a server whose journal is a file starts sooner without it.
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)


@cache
def _create_handle(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Keep a row as it is, unless its id was given to a newer object."""
    new = insert_into(dialect, handles)
    return new.on_conflict_do_update(
        index_elements=[handles.c.session, handles.c.kind, handles.c.id],
        set_={
            "generation": new.excluded.generation,
            "recipe": new.excluded.recipe,
            "created_seq": new.excluded.created_seq,
            "destroyed_seq": None,
        },
        where=handles.c.created_seq < new.excluded.created_seq,
    )


@cache
def _allocate(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Keep a row that is there already."""
    return insert_into(dialect, allocations).on_conflict_do_nothing()


_DESTROY_HANDLE = (
    update(handles)
    .where(handles.c.session == bindparam("in_session"))
    .where(handles.c.kind == bindparam("of_kind"), handles.c.id == bindparam("of_id"))
    .where(handles.c.created_seq < bindparam("seq"), handles.c.destroyed_seq.is_(None))
    .values(destroyed_seq=bindparam("seq"))
)
_FREE = (
    update(allocations)
    .where(allocations.c.session == bindparam("in_session"))
    .where(allocations.c.address == bindparam("at"))
    .where(allocations.c.created_seq < bindparam("seq"), allocations.c.freed_seq.is_(None))
    .values(freed_seq=bindparam("seq"))
)


def write(connection: Connection, session_id: str, entries: Iterable[Entry]) -> None:
    """Write records, creations first (an end only finds what began before it)."""
    created: dict[tuple[str, int], dict[str, Any]] = {}
    allocated: list[dict[str, Any]] = []
    destroyed: list[dict[str, Any]] = []
    freed: list[dict[str, Any]] = []
    for entry in sorted(entries, key=lambda entry: entry.seq):
        match entry:
            case HandleCreated(kind, id):
                created[kind, id] = _handle(session_id, entry)
            case HandleDestroyed(kind, id, seq):
                destroyed.append(
                    {"in_session": session_id, "of_kind": kind, "of_id": id, "seq": seq}
                )
            case Allocated():
                allocated.append(_allocation(session_id, entry))
            case Freed(address, seq):
                freed.append({"in_session": session_id, "at": address, "seq": seq})
    dialect = connection.dialect.name
    for statement, rows in (
        (_create_handle(dialect), list(created.values())),
        (_allocate(dialect), allocated),
        (_DESTROY_HANDLE, destroyed),
        (_FREE, freed),
    ):
        if rows:
            connection.execute(statement, rows)


def _handle(session_id: str, entry: HandleCreated) -> dict[str, Any]:
    return {
        "session": session_id,
        "kind": entry.kind,
        "id": entry.id,
        "generation": entry.generation,
        "recipe": entry.recipe,
        "created_seq": entry.seq,
    }


def _allocation(session_id: str, entry: Allocated) -> dict[str, Any]:
    return {
        "session": session_id,
        "address": entry.address,
        "size": entry.size,
        "device": entry.device,
        "flags": entry.flags,
        "created_seq": entry.seq,
    }


def cut_back(connection: Connection, session_id: str, seq: int) -> None:
    """Make the rows say what existed after call ``seq``."""
    for table, ended in ((handles, "destroyed_seq"), (allocations, "freed_seq")):
        mine = table.c.session == session_id
        connection.execute(delete(table).where(mine, table.c.created_seq > seq))
        connection.execute(update(table).where(mine, table.c[ended] > seq).values({ended: None}))


def prune(connection: Connection, session_id: str, seq: int) -> None:
    """Drop what had ended by call ``seq``: no epoch before it is ever restored."""
    for table, ended in ((handles, "destroyed_seq"), (allocations, "freed_seq")):
        connection.execute(
            delete(table).where(table.c.session == session_id, table.c[ended] <= seq)
        )


def live_handles(connection: Connection, session_id: str) -> list[HandleRow]:
    """Return the handles that exist, in the order of their creation."""
    query = select(*_HANDLE_COLUMNS).where(
        handles.c.session == session_id, handles.c.destroyed_seq.is_(None)
    )
    ordered = query.order_by(handles.c.created_seq, handles.c.id)
    return [HandleRow(*row) for row in connection.execute(ordered)]


def live_allocations(connection: Connection, session_id: str) -> list[AllocationRow]:
    """Return the allocations that exist, by address."""
    query = select(*_ALLOCATION_COLUMNS).where(
        allocations.c.session == session_id, allocations.c.freed_seq.is_(None)
    )
    return [AllocationRow(*row) for row in connection.execute(query.order_by("address"))]


def allocation_at(connection: Connection, session_id: str, address: int) -> AllocationRow | None:
    """Return the live allocation that contains ``address``."""
    query = (
        select(*_ALLOCATION_COLUMNS)
        .where(allocations.c.session == session_id, allocations.c.freed_seq.is_(None))
        .where(allocations.c.address <= address)
        .order_by(allocations.c.address.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    found = AllocationRow(*row) if row is not None else None
    return found if found is not None and address - found.address < found.size else None
