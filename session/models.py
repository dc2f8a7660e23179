"""Tables of the journal (SQLAlchemy Core).

The journal says what exists: sessions with their fencing tokens, servers with their leases,
and per session the handles, allocations and epochs. Handle and allocation rows are an index;
the manifest of an epoch is the only source of a restore. Every change here needs a migration
(a test compares the two).

No mapped classes: rows are read into those of `outlast.session.rows`, and loading
SQLAlchemy's ORM would make every start of a server longer.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from outlast.session.sqltypes import U64

#: All tables, with predictable constraint names for migrations.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: One session server and the lease that makes its sessions its own.
servers = Table(
    "servers",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("endpoint", String(1024), nullable=False),
    #: `ServerState` value.
    Column("state", String(16), nullable=False),
    #: Clock that `lease_expires` was read from; under another clock the lease has ended.
    Column("clock", String(64), nullable=False),
    #: Seconds on that clock.
    Column("lease_expires", Double, nullable=False),
    #: Unix seconds, for people.
    Column("started_at", Double, nullable=False),
)

#: One session: who serves it, and the numbers that fence everybody else off.
sessions = Table(
    "sessions",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("incarnation", LargeBinary(16), nullable=False),
    Column("resume_token_hash", LargeBinary, nullable=False),
    Column("owner", ForeignKey("servers.id"), nullable=False),
    #: Fencing token; grows with every claim, never falls.
    Column("token", U64, nullable=False),
    #: Number of the newest attachment; never falls.
    Column("generation", U64, nullable=False),
    #: `SessionState` value.
    Column("state", String(16), nullable=False),
    Column("failed_seq", U64),
    Column("failed_reason", Text),
    #: Highest epoch number ever committed.
    Column("last_epoch", U64, nullable=False),
    #: Unix seconds, for people.
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index(None, "owner"),
)

#: One virtual CUDA handle and the recipe that makes it again.
handles = Table(
    "handles",
    metadata,
    Column("session", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("id", U64, primary_key=True, autoincrement=False),
    Column("generation", U64, nullable=False),
    Column("recipe", JSON, nullable=False),
    Column("created_seq", U64, nullable=False),
    Column("destroyed_seq", U64),
)

#: One device allocation; an address can be used again after a free.
allocations = Table(
    "allocations",
    metadata,
    Column("session", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("address", U64, primary_key=True, autoincrement=False),
    Column("created_seq", U64, primary_key=True, autoincrement=False),
    Column("size", U64, nullable=False),
    Column("device", Integer, nullable=False),
    Column("flags", U64, nullable=False),
    Column("freed_seq", U64),
)

#: One committed epoch: the row is the commit, the files are at `location`.
epochs = Table(
    "epochs",
    metadata,
    Column("session", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("epoch", U64, primary_key=True, autoincrement=False),
    Column("seq", U64, nullable=False),
    #: Fencing token under which it was written.
    Column("token", U64, nullable=False),
    Column("provider", String(64), nullable=False),
    Column("location", Text, nullable=False),
    Column("size", U64, nullable=False),
    Column("digest", String(128), nullable=False),
    Column("verified", Boolean, nullable=False),
    #: Unix seconds.
    Column("created_at", Double, nullable=False),
    #: Unix seconds since when it may be removed; NULL while it is kept.
    Column("deleting_since", Double),
)
