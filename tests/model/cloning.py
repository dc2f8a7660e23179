"""Fast copies of a world: what changes is copied, what cannot change is shared."""

from __future__ import annotations

import copy
from collections import Counter, deque
from typing import Any

from model.parts import Client, Connection, ModelWorker
from model.world import World

from outlast.session.client import ClientSession
from outlast.session.openbatch import OpenBatch
from outlast.session.pending import Pending, Query

_CONTAINERS = (list, dict, set, deque, Counter)


def clone(world: World) -> World:
    """Return a world with the same future that shares no mutable part with ``world``."""
    new = _shallow(world)
    new.clients = {name: _client(client) for name, client in world.clients.items()}
    new.worker = _worker(world.worker)
    new.stale = _worker(world.stale)
    new.connections = {number: _connection(c) for number, c in world.connections.items()}
    new.row = copy.copy(world.row)
    new.epochs = [copy.copy(epoch) for epoch in world.epochs]
    return new


def _shallow(thing: Any) -> Any:
    """Return a copy of an object whose containers are copies too."""
    new = object.__new__(type(thing))
    attributes = new.__dict__
    for name, value in thing.__dict__.items():
        attributes[name] = value.copy() if type(value) in _CONTAINERS else value
    return new


def _client(client: Client) -> Client:
    new: Client = _shallow(client)
    pendings: dict[int, Pending] = {}
    new.session = _session(client.session, pendings)
    new.waiting = {seq: pendings.get(id(p), p) for seq, p in client.waiting.items()}
    new.queries = {n: (after, pendings.get(id(p), p)) for n, (after, p) in client.queries.items()}
    return new


def _session(session: ClientSession, pendings: dict[int, Pending]) -> ClientSession:
    """Copy a session, and its pendings into ``pendings`` by the id of the original."""
    new: ClientSession = _shallow(session)
    new.log = _shallow(session.log)
    new.recovery = _shallow(session.recovery)
    new._landed_deferred = _shallow(session._landed_deferred)
    new.open = OpenBatch(session.open.first_seq, list(session.open.calls))
    for pending in session._pending.values():
        pendings[id(pending)] = _pending(pending)
    for query in session._queries.values():
        pendings[id(query.pending)] = _pending(query.pending)
    new._pending = {seq: pendings[id(p)] for seq, p in session._pending.items()}
    new._queries = {n: _query(q, pendings) for n, q in session._queries.items()}
    new._unsent = deque(
        new._queries.get(item.pending.number, item) if isinstance(item, Query) else item
        for item in session._unsent
    )
    return new


def _pending(pending: Pending) -> Pending:
    new = Pending(pending.op, pending.number, pending.out)
    new.done, new.reply, new.error = pending.done, pending.reply, pending.error
    return new


def _query(query: Query, pendings: dict[int, Pending]) -> Query:
    return Query(query.after_seq, query.records, pendings[id(query.pending)])


def _worker(worker: ModelWorker | None) -> ModelWorker | None:
    if worker is None:
        return None
    new: ModelWorker = _shallow(worker)
    new.host = _shallow(worker.host)
    return new


def _connection(connection: Connection) -> Connection:
    new: Connection = _shallow(connection)
    return new
