"""Tables of the journal (SQLAlchemy 2, declarative).

The journal says what exists: sessions with their fencing tokens, servers with their leases,
and per session the handles, allocations and epochs. Handle and allocation rows are an index;
the manifest of an epoch is the only source of a restore. Every change here needs a migration
(a test compares the two).
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import (
    JSON,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outlast.session.sqltypes import U64


class Base(DeclarativeBase):
    """Base of all tables, with predictable constraint names for migrations."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Server(Base):
    """One session server and the lease that makes its sessions its own."""

    __tablename__ = "servers"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    endpoint: Mapped[str] = mapped_column(String(1024))
    #: `ServerState` value.
    state: Mapped[str] = mapped_column(String(16))
    #: Clock that `lease_expires` was read from; under another clock the lease has ended.
    clock: Mapped[str] = mapped_column(String(64))
    #: Seconds on that clock.
    lease_expires: Mapped[float] = mapped_column(Double)
    #: Unix seconds, for people.
    started_at: Mapped[float] = mapped_column(Double)


class Session(Base):
    """One session: who serves it, and the numbers that fence everybody else off."""

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "owner"),)

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    incarnation: Mapped[bytes] = mapped_column(LargeBinary(16))
    resume_token_hash: Mapped[bytes] = mapped_column(LargeBinary)
    owner: Mapped[str] = mapped_column(ForeignKey("servers.id"))
    #: Fencing token; grows with every claim, never falls.
    token: Mapped[int] = mapped_column(U64)
    #: Number of the newest attachment; never falls.
    generation: Mapped[int] = mapped_column(U64)
    #: `SessionState` value.
    state: Mapped[str] = mapped_column(String(16))
    failed_seq: Mapped[int | None] = mapped_column(U64)
    failed_reason: Mapped[str | None] = mapped_column(Text)
    #: Highest epoch number ever committed.
    last_epoch: Mapped[int] = mapped_column(U64)
    #: Unix seconds, for people.
    created_at: Mapped[float] = mapped_column(Double)
    updated_at: Mapped[float] = mapped_column(Double)


class Handle(Base):
    """One virtual CUDA handle and the recipe that makes it again."""

    __tablename__ = "handles"

    session: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    id: Mapped[int] = mapped_column(U64, primary_key=True, autoincrement=False)
    generation: Mapped[int] = mapped_column(U64)
    recipe: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_seq: Mapped[int] = mapped_column(U64)
    destroyed_seq: Mapped[int | None] = mapped_column(U64)


class Allocation(Base):
    """One device allocation; an address can be used again after a free."""

    __tablename__ = "allocations"

    session: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    address: Mapped[int] = mapped_column(U64, primary_key=True, autoincrement=False)
    created_seq: Mapped[int] = mapped_column(U64, primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(U64)
    device: Mapped[int]
    flags: Mapped[int] = mapped_column(U64)
    freed_seq: Mapped[int | None] = mapped_column(U64)


class Epoch(Base):
    """One committed epoch: the row is the commit, the files are at `location`."""

    __tablename__ = "epochs"

    session: Mapped[str] = mapped_column(
        ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    epoch: Mapped[int] = mapped_column(U64, primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(U64)
    #: Fencing token under which it was written.
    token: Mapped[int] = mapped_column(U64)
    provider: Mapped[str] = mapped_column(String(64))
    location: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(U64)
    digest: Mapped[str] = mapped_column(String(128))
    verified: Mapped[bool]
    #: Unix seconds.
    created_at: Mapped[float] = mapped_column(Double)
    #: Unix seconds since when it may be removed; NULL while it is kept.
    deleting_since: Mapped[float | None] = mapped_column(Double)


servers = cast(Table, Server.__table__)
sessions = cast(Table, Session.__table__)
handles = cast(Table, Handle.__table__)
allocations = cast(Table, Allocation.__table__)
epochs = cast(Table, Epoch.__table__)
