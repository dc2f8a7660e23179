"""Breadth-first exploration of everything that can happen within bounds.

States are told apart by a hash of everything that decides what comes next. Liveness costs
nothing extra: each state remembers the state that its first progress action leads to, and
at the end every such chain has to reach a quiescent state.
"""

from __future__ import annotations

import marshal
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from model import properties
from model.cloning import clone
from model.parts import PROGRESS, Action, Bounds, Client, Connection, ModelWorker, Violation
from model.world import World

from outlast.session.client import ClientSession
from outlast.session.host import HostSession
from outlast.session.pending import Query
from outlast.session.recovery import FaultRecovery
from outlast.session.wire import Reply


@dataclass
class Result:
    """What an exploration saw."""

    states: int = 0
    transitions: int = 0
    quiescent: int = 0
    #: How often each kind of action was taken.
    actions: Counter[str] = field(default_factory=Counter)
    #: The bound on states was reached: not exhaustive.
    cut: bool = False
    violation: Violation | None = None
    #: The actions that lead to the violation, shortest way first.
    trace: tuple[Action, ...] = ()

    def explain(self) -> str:
        """Return the violation with the way to it."""
        steps = "".join(f"\n  {name} {argument}" for name, argument in self.trace)
        return f"{self.violation}{steps}"


class Explorer:
    """Explores a world within bounds.

    Parameters
    ----------
    bounds : Bounds
        What may happen.
    max_states : int
        Give up here, and say so in the result.
    """

    def __init__(self, bounds: Bounds, max_states: int = 1_000_000) -> None:
        self.bounds = bounds
        self.max_states = max_states
        self._ids: dict[bytes, int] = {}
        self._from: list[tuple[int, Action | None]] = []
        #: Where the first progress action leads; -1: quiescent, -2: not explored.
        self._next: list[int] = []

    def run(self) -> Result:
        """Explore; stop at the first violation."""
        result = Result()
        queue: deque[tuple[int, World]] = deque()
        first = World(self.bounds)
        self._enter(first, -1, None, queue)
        while queue:
            if len(self._ids) >= self.max_states:
                result.cut = True
                break
            number, world = queue.popleft()
            if not self._expand(number, world, queue, result):
                break
        result.states = len(self._ids)
        if result.violation is None:
            self._check_liveness(result)
        return result

    def _expand(
        self, number: int, origin: World, queue: deque[tuple[int, World]], result: Result
    ) -> bool:
        actions = origin.actions(self.bounds)
        if not actions or actions[0][0] not in PROGRESS:
            self._next[number] = -1
            result.quiescent += 1
            try:
                properties.check_quiescent(origin)
            except Violation as violation:
                return self._found(result, violation, number, None)
        for index, action in enumerate(actions):
            world = clone(origin)
            result.transitions += 1
            result.actions[action[0]] += 1
            try:
                world.act(action, self.bounds)
                properties.check(world)
            except Violation as violation:
                return self._found(result, violation, number, action)
            reached = self._enter(world, number, action, queue)
            if index == 0 and action[0] in PROGRESS:
                self._next[number] = reached
        return True

    def _enter(
        self, world: World, origin: int, action: Action | None, queue: deque[tuple[int, World]]
    ) -> int:
        key = fingerprint(world)
        known = self._ids.get(key)
        if known is not None:
            return known
        number = len(self._ids)
        self._ids[key] = number
        self._from.append((origin, action))
        self._next.append(-2)
        queue.append((number, world))
        return number

    def _found(
        self, result: Result, violation: Violation, number: int, action: Action | None
    ) -> bool:
        result.violation = violation
        result.trace = (*self._trace(number), *([action] if action else []))
        return False

    def _trace(self, number: int) -> Iterator[Action]:
        steps = []
        while number >= 0:
            number, action = self._from[number]
            if action is not None:
                steps.append(action)
        return reversed(steps)

    def _check_liveness(self, result: Result) -> None:
        """Follow each state's progress; a cycle never comes to rest."""
        good = [False] * len(self._next)
        for start in range(len(self._next)):
            path, number = [], start
            seen = set()
            while number >= 0 and not good[number] and number not in seen:
                seen.add(number)
                path.append(number)
                number = self._next[number]
            if number in seen:
                self._found(result, Violation("quiescence", "goes round and round"), number, None)
                return
            for passed in path:
                good[passed] = True


# -- fingerprints --------------------------------------------------------------------------


def fingerprint(world: World) -> bytes:
    """Return a hash of everything that decides a world's future."""
    row = world.row
    state = (
        [_client(client) for client in world.clients.values()],
        (row.incarnation, row.token, row.generation) if row else None,
        [(e.seq, e.state, _replies(e.replies), e.usable, e.corrupt) for e in world.epochs],
        _worker(world.worker),
        _worker(world.stale),
        [(number, _connection(c)) for number, c in sorted(world.connections.items())],
        sorted(world.used.items()),
        world.workers,
        world.next_connection,
    )
    return blake2b(marshal.dumps(state, 2), digest_size=16).digest()


def _client(client: Client) -> tuple[Any, ...]:
    return (
        _session(client.session),
        len(client.script),
        client.connection,
        sorted(client.landed.items()),
        client.reported,
        [pending.done for pending in client.waiting.values()],
        [pending.done for _, pending in client.queries.values()],
        client.accepted,
        client.crashed,
    )


def _session(session: ClientSession) -> tuple[Any, ...]:
    log = session.log
    return (
        session.phase.value,
        int(session.intent),
        type(session.error).__name__,
        session.generation,
        session.next_seq,
        session.next_qid,
        session.applied,
        session.recoverable,
        session.attachments > 0,
        log.head,
        [batch.first_seq for batch in log.batches],
        [(seq, o.result, o.value) for seq, o in sorted(log.outcomes.items())],
        list(session._pending),
        list(session._queries),
        [item.pending.number if isinstance(item, Query) else -item.first_seq
         for item in session._unsent],
        session._replay_until,
        list(session._in_flight),
        sorted(session._landed_deferred._told.items()),
        session._ack_due,
        list(session.deferred),
        repr(session.inventory),
        session.sticky,
        _recovery(session.recovery),
    )  # fmt: skip


def _recovery(recovery: FaultRecovery) -> tuple[Any, ...]:
    if not recovery.enabled:
        return ()
    wanted, tries, good = recovery.wanted, recovery._tries, recovery._good
    return wanted, recovery.count, recovery._suspects, tries, good, recovery._epoch


def _worker(worker: ModelWorker | None) -> tuple[Any, ...] | None:
    if worker is None:
        return None
    saving = worker.saving
    return (
        worker.id,
        worker.token,
        worker.may_act,
        worker.stumbles,
        worker.fails,
        worker.poisoned,
        _host(worker.host),
        worker.state,
        _replies(worker.waits),
        (saving[0].seq, _replies(saving[0].replies), saving[1]) if saving else None,
    )


def _host(host: HostSession) -> tuple[Any, ...]:
    return (
        host.state.value,
        host.generation,
        host.peer,
        host.applied,
        host.epochs,
        host.restored_from,
        host._secret,
        host._replay_to,
        host._base,
        _replies(host._outcomes.values()),
        _replies(host._deferred.values()),
        _replies(host._outbox),
        host._told_applied,
    )


def _replies(replies: Any) -> list[tuple[int, int, int, int, bytes]]:
    return [(int(r.kind), r.number, r.result, r.value, bytes(r.data)) for r in replies]


def _connection(connection: Connection) -> tuple[Any, ...]:
    return (
        connection.client,
        connection.worker,
        connection.to_server,
        connection.to_client,
        connection.open,
    )


__all__ = ["Explorer", "Reply", "Result", "fingerprint"]
