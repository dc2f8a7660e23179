"""What an operator asks of the journal and the keeper from the command line."""

from __future__ import annotations

import time
from contextlib import closing

from outlast import migrations
from outlast.checkpoint_providers import open_provider
from outlast.config import ServeConfig
from outlast.errors import ConfigError, KeeperError
from outlast.server.keeper.client import Keeper
from outlast.server.kept import KeptMemory
from outlast.session.rows import ServerRow, SessionRow
from outlast.session.store import Store


def downgrade(config: ServeConfig, revision: str) -> str:
    """Take the journal back to an older revision, for an older version of Outlast.

    Raises
    ------
    ConfigError
        There is no such revision, or a server is using the journal.
    """
    store = Store.open(config.database)
    try:
        if migrations.current_revision(store.engine) == migrations.head_revision():
            _require_unused(store)
        migrations.downgrade(store.engine, revision)
    finally:
        store.close()
    return f"the journal is at revision {revision}"


def sessions(config: ServeConfig) -> str:
    """Return a table of the sessions: name, state, owner, newest epoch."""
    store = Store.open(config.database)
    try:
        migrations.upgrade(store.engine)
        rows = store.sessions()
        width = max(len(name) for name in ("SESSION", *(row.id for row in rows)))
        lines = [f"{'SESSION':<{width}} {'STATE':<8} {'EPOCH':>12} {'AGE':>10}  SERVER / REASON"]
        for row in rows:
            epochs = store.epochs(row.id)
            seq = str(epochs[0].seq) if epochs else "-"
            age = f"{time.time() - epochs[0].created_at:.0f} s" if epochs else "-"
            rest = row.failed_reason or row.owner
            lines.append(f"{row.id:<{width}} {row.state:<8} {seq:>12} {age:>10}  {rest}")
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


def end(config: ServeConfig, session_id: str) -> str:
    """End a session for good and remove its checkpoints, and what the keeper has of it.

    Raises
    ------
    ConfigError
        A server is using it.
    """
    store = Store.open(config.database)
    try:
        migrations.upgrade(store.engine)
        row = store.session(session_id)
        owner = {server.id: server for server in store.servers()}.get(row.owner)
        if owner is not None and owner.lease_left > 0:
            raise ConfigError(
                f"{owner.id} at {owner.endpoint} holds session {session_id!r}: stop it first"
                + _lease_hint(owner)
            )
        store.end_session(session_id, row.token)
        with closing(KeptMemory(config.state_dir)) as keeper:
            keeper.forget(session_id, row.token)
        missing = _remove_epochs(config, store, row)
    finally:
        store.close()
    text = f"session {session_id!r} has ended"
    if missing:
        text += (
            f"; {missing} of its checkpoints are not at {config.provider!r}: the server whose "
            "--provider has them removes them at its next start"
        )
    return text


def kept(config: ServeConfig) -> str:
    """Return a table of the device memory that the keeper has.

    Raises
    ------
    ConfigError
        No server has used the state folder.
    """
    if not (config.state_dir / "server.lock").exists():
        raise ConfigError(
            f"no server has used the state folder {config.state_dir}: name its folder with --state"
        )
    keeper = Keeper(config.state_dir)
    try:
        held = keeper.holdings()
    except KeeperError as error:
        if error.reason != "unreachable":
            raise
        held = []
    finally:
        keeper.close()
    if not held:
        return "nothing is kept"
    width = max(len(name) for name in ("SESSION", *(entry["session"] for entry in held)))
    lines = [f"{'SESSION':<{width}} {'MIB':>10} {'EPOCH':>12} {'HOLDER':>8} {'LEFT':>8}  STATE"]
    for entry in held:
        left = "-" if entry["left"] is None else f"{entry['left']:.0f} s"
        epoch = str(entry["seq"]) if entry["sealed"] else "-"
        size = entry["bytes"] >> 20
        lines.append(
            f"{entry['session']:<{width}} {size:>10} {epoch:>12} {entry['holder'] or '-':>8} "
            f"{left:>8}  {_state(entry)}"
        )
    return "\n".join(lines)


def _state(entry: dict[str, object]) -> str:
    """Return what the next worker could do with what is held of a session."""
    if entry["sealed"]:
        return "at rest: the next worker can go on with it"
    if entry.get("outdated"):
        return "changed since it was sealed"
    return "not sealed"


def _require_unused(store: Store) -> None:
    """Refuse to change a journal below a running server: its sessions would be lost."""
    for server in store.servers():
        if server.lease_left > 0:
            raise ConfigError(
                f"{server.id} at {server.endpoint} uses the journal: stop it first"
                + _lease_hint(server)
            )


def _lease_hint(server: ServerRow) -> str:
    return f"; of a server that was killed, the lease ends in {server.lease_left:.0f} s"


def _remove_epochs(config: ServeConfig, store: Store, row: SessionRow) -> int:
    """Remove an ended session's checkpoints; return how many were not found.

    Their rows stay: they may lie with another provider than the one that was named.
    """
    provider = open_provider(config.provider, config.state_dir)
    there = {stored.location for stored in provider.list(row.id)}
    missing = 0
    for epoch in store.epochs(row.id, unusable=True):
        if epoch.verified and epoch.location not in there:
            missing += 1
            continue
        provider.delete(epoch.location)
        store.forget_epochs(row.id, row.token, [epoch.epoch])
    return missing
