"""Roles of the processes that tests let work on one journal at the same time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from outlast.errors import JournalNewer
from outlast.migrations import upgrade
from outlast.session.database import open_engine
from outlast.session.rows import Allocated, HandleCreated
from outlast.session.store import Store


def start(url: str) -> None:
    """Start as a server does; print whether this process applied the migrations."""
    engine = open_engine(url)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("applied" if upgrade(engine) else "found", flush=True)
    except JournalNewer as error:
        sys.exit(str(error))


def die_migrating(url: str, statement: str) -> None:
    """Be killed right after the third table was made."""
    engine = open_engine(url)
    seen = 0

    def kill(_connection: Any, _cursor: Any, sql: str, *_rest: Any) -> None:
        nonlocal seen
        seen += statement in sql
        if seen == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(engine, "after_cursor_execute", kill)
    upgrade(engine)


def write(url: str, session_id: str, token: str) -> None:
    """Record calls one after another for ever; print each seq once it is acknowledged."""
    store = Store.open(url)
    generation = store.session(session_id).generation
    seq = 0
    while True:
        seq += 1
        created = HandleCreated("event", seq, generation, {"flags": seq}, seq)
        allocated = Allocated(seq << 20, 1 << 20, 0, 0, seq)
        store.record(session_id, int(token), [created, allocated])
        print(seq, flush=True)


def serve(url: str, server_id: str, ttl: str) -> None:
    """Take, renew and give back every session, for ever."""
    store = Store.open(url)
    print("ready", flush=True)
    while True:
        store.register_server(server_id, "gpu-host", "tcp://x", float(ttl))
        for session in store.sessions():
            store.claim(session.id, server_id)
        store.renew_lease(server_id, float(ttl))
        store.release_server(server_id)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "start": start,
        "die_migrating": die_migrating,
        "write": write,
        "serve": serve,
    }
    roles[sys.argv[1]](*sys.argv[2:])
