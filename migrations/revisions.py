"""Moving a journal between revisions; Alembic is loaded only to really move it."""

from __future__ import annotations

from sqlalchemy import Engine

from outlast.migrations.head import at_head

#: How long a starting server waits for another one's upgrade.
UPGRADE_TIMEOUT = 60.0  # seconds


def upgrade(engine: Engine, *, timeout: float = UPGRADE_TIMEOUT) -> bool:
    """Bring the journal to this version's revision.

    Parameters
    ----------
    engine : Engine
        From `outlast.session.database.open_engine`.
    timeout : float
        Seconds to wait while another server upgrades.

    Returns
    -------
    bool
        Whether this call applied migrations; False when there were none to apply.

    Raises
    ------
    JournalNewer
        A newer version of Outlast wrote the journal; nothing was changed.
    JournalUnavailable
        Another server still upgrades after ``timeout``.
    """
    if at_head(engine):
        return False
    from outlast.migrations import runner

    return runner.upgrade(engine, timeout=timeout)


def downgrade(engine: Engine, revision: str, *, timeout: float = UPGRADE_TIMEOUT) -> None:
    """Take the journal back to an older revision, for an older version of Outlast.

    Raises
    ------
    ConfigError
        There is no such revision.
    JournalNewer
        The journal's own revision is not known to this version; use the newer one.
    """
    from outlast.migrations import runner

    runner.downgrade(engine, revision, timeout=timeout)


def head_revision() -> str:
    """Return the revision this version of Outlast works with."""
    from outlast.migrations import runner

    return runner.head_revision()


def current_revision(engine: Engine) -> str | None:
    """Return the journal's revision, None for an empty database; writes nothing.

    Raises
    ------
    JournalNewer
        This version does not know the revision.
    """
    from outlast.migrations import runner

    return runner.current_revision(engine)
