"""Alembic migrations of the journal, applied when a server starts."""

from outlast.migrations.revisions import current_revision, downgrade, head_revision, upgrade

__all__ = ["current_revision", "downgrade", "head_revision", "upgrade"]
