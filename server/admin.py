"""What an operator does with the journal from the command line."""

from __future__ import annotations

import time

from outlast import migrations
from outlast.config import ServeConfig
from outlast.session.store import Store


def downgrade(config: ServeConfig, revision: str) -> str:
    """Take the journal back to an older revision, for an older version of Outlast."""
    store = Store.open(config.database)
    try:
        migrations.downgrade(store.engine, revision)
    finally:
        store.close()
    return f"the journal is at revision {revision}"


def sessions(config: ServeConfig) -> str:
    """Return a table of the sessions: name, state, owner, newest epoch."""
    store = Store.open(config.database)
    try:
        migrations.upgrade(store.engine)
        lines = [f"{'SESSION':<32} {'STATE':<8} {'EPOCH':>12} {'AGE':>10}  SERVER / REASON"]
        for row in store.sessions():
            epochs = store.epochs(row.id)
            seq = str(epochs[0].seq) if epochs else "-"
            age = f"{time.time() - epochs[0].created_at:.0f} s" if epochs else "-"
            rest = row.failed_reason or row.owner
            lines.append(f"{row.id:<32} {row.state:<8} {seq:>12} {age:>10}  {rest}")
    finally:
        store.close()
    return "\n".join(lines)


def unpark(config: ServeConfig, session_id: str) -> str:
    """Let a parked session be tried again."""
    store = Store.open(config.database)
    try:
        migrations.upgrade(store.engine)
        row = store.session(session_id)
        store.unpark(session_id, row.token)
    finally:
        store.close()
    return f"session {session_id!r} may go on"
