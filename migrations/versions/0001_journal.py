"""Sessions, servers, handles, allocations and epochs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: Unsigned values, stored as ``value - 2**63``.
U64 = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("endpoint", sa.String(1024), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("clock", sa.String(64), nullable=False),
        sa.Column("lease_expires", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("incarnation", sa.LargeBinary(16), nullable=False),
        sa.Column("resume_token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("token", U64(), nullable=False),
        sa.Column("generation", U64(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("failed_seq", U64(), nullable=True),
        sa.Column("failed_reason", sa.Text(), nullable=True),
        sa.Column("last_epoch", U64(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.ForeignKeyConstraint(["owner"], ["servers.id"], name="fk_sessions_owner_servers"),
    )
    op.create_index("ix_sessions_owner", "sessions", ["owner"])
    op.create_table(
        "handles",
        sa.Column("session", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("id", U64(), autoincrement=False, nullable=False),
        sa.Column("generation", U64(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("created_seq", U64(), nullable=False),
        sa.Column("destroyed_seq", U64(), nullable=True),
        sa.PrimaryKeyConstraint("session", "kind", "id", name="pk_handles"),
        _session_key("handles"),
    )
    op.create_table(
        "allocations",
        sa.Column("session", sa.String(128), nullable=False),
        sa.Column("address", U64(), autoincrement=False, nullable=False),
        sa.Column("created_seq", U64(), autoincrement=False, nullable=False),
        sa.Column("size", U64(), nullable=False),
        sa.Column("device", sa.Integer(), nullable=False),
        sa.Column("flags", U64(), nullable=False),
        sa.Column("freed_seq", U64(), nullable=True),
        sa.PrimaryKeyConstraint("session", "address", "created_seq", name="pk_allocations"),
        _session_key("allocations"),
    )
    op.create_table(
        "epochs",
        sa.Column("session", sa.String(128), nullable=False),
        sa.Column("epoch", U64(), autoincrement=False, nullable=False),
        sa.Column("seq", U64(), nullable=False),
        sa.Column("token", U64(), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("size", U64(), nullable=False),
        sa.Column("digest", sa.String(128), nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleting_since", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("session", "epoch", name="pk_epochs"),
        _session_key("epochs"),
    )


def downgrade() -> None:
    for table in ("epochs", "allocations", "handles", "sessions", "servers"):
        op.drop_table(table)


def _session_key(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_session_sessions"
    return sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=name, ondelete="CASCADE")
