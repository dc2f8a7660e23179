"""Whether a journal is at this version's revision, found out without loading Alembic.

Most starts of a server find nothing to migrate; Alembic and what it needs would be a fifth of
everything that is loaded until the server is ready.
"""

from __future__ import annotations

from sqlalchemy import Engine, inspect, text

#: The newest revision; a test compares it with the scripts.
HEAD = "0001"
#: Where Alembic keeps the revision of a database.
TABLE = "alembic_version"


def at_head(engine: Engine) -> bool:
    """Return whether the journal has exactly this version's revision; writes nothing."""
    with engine.connect().execution_options(read_only=True) as connection:
        if not inspect(connection).has_table(TABLE):
            return False
        found = connection.execute(text(f"SELECT version_num FROM {TABLE}")).scalars()
        return list(found) == [HEAD]
