"""What must hold in every state of the world, each under a name of its own."""

from __future__ import annotations

from model.parts import Client, ModelWorker, Violation
from model.world import World

from outlast.errors import SessionBusy, SessionFenced, SessionLost
from outlast.session.phase import Phase

#: Every property's name and what it says.
PROPERTIES = {
    "applied_once_in_order": "a worker's state is exactly a prefix of its client's log",
    "nothing_acknowledged_lost": "no outcome a program has seen is contradicted by a worker",
    "landed_once": "a call's outcome lands once",
    "deferred_once": "a late failure is reported once, to the client whose call it was",
    "one_owner": "of all clients at most one is the owner, and none goes back a generation",
    "log_reaches_epochs": "the log still begins where the oldest usable epoch ends",
    "lost_only_without_a_way": "a session is lost only when no epoch and log fit together",
    "spared": "a program that recovers sees nothing of an error that does not come again",
    "query_order": "a query is answered behind every call before it",
    "data_first": "whoever is told that work is done has the bytes of the copies in it",
    "quiescence": "without further faults everything gets applied and answered",
}


def check(world: World) -> None:
    """Raise the `Violation` of the first safety property that does not hold."""
    for worker in (world.worker, world.stale):
        if worker is not None:
            _check_worker(worker)
    owners = 0
    for client in world.clients.values():
        owners += _owns(world, client)
        _check_reports(client)
    if owners > 1:
        raise Violation("one_owner", "two attached clients")
    owner = _owner(world)
    if owner is not None and world.worker is not None:
        _check_prefix(world.worker, owner)
        _check_outcomes(world.worker, owner)
    if owner is not None and owner.session.phase is not Phase.CLOSED:
        _check_log(world, owner)


def check_quiescent(world: World) -> None:
    """Raise unless a state in which nothing more happens by itself is a good one."""
    for client in world.clients.values():
        session = client.session
        if client.crashed or not (session.attachments or session.phase is Phase.CLOSED):
            continue
        if session.phase is Phase.CLOSED:
            _check_end(world, client)
            continue
        waiting = [seq for seq, pending in client.waiting.items() if not pending.done]
        if waiting or client.script:
            raise Violation("quiescence", f"{client.name} waits for {waiting}")
        if any(not query.done for _, query in client.queries.values()):
            raise Violation("quiescence", f"a query of {client.name} has no answer")
        if world.worker is None or world.worker.host.applied != session.next_seq - 1:
            raise Violation("quiescence", f"not every call of {client.name} is applied")
        if session.sticky:
            if world.recovers and world.used["poison"] == 1:
                raise Violation("spared", f"{client.name} was told of {session.sticky}")
            continue
        if sorted(client.reported) != sorted(client.failing):
            raise Violation("deferred_once", f"{client.failing} failed, told: {client.reported}")


def _owner(world: World) -> Client | None:
    """Return the client that the journal names, once it has its own log."""
    for client in world.clients.values():
        named = world.row is not None and world.row.incarnation == client.session.incarnation
        if named and client.session.attachments and not client.crashed:
            return client
    return None


def _owns(world: World, client: Client) -> bool:
    """Return whether a client and the current worker take each other for the owner."""
    worker = world.worker
    return (
        worker is not None
        and client.session.phase is Phase.ATTACHED
        and not client.crashed
        and worker.host.peer == str(client.connection).encode()
        and worker.host.generation == client.session.generation
    )


def _check_worker(worker: ModelWorker) -> None:
    seqs = [seq for seq, *_ in worker.state]
    if seqs != list(range(1, worker.host.applied + 1)):
        raise Violation("applied_once_in_order", f"worker {worker.id} has {seqs}")


def _check_prefix(worker: ModelWorker, owner: Client) -> None:
    if worker.host.applied >= owner.session.next_seq:
        raise Violation("applied_once_in_order", "applied what the client has not said")
    for seq, uid, *_ in worker.state[owner.base :]:
        if owner.issued[seq] != uid:
            raise Violation("applied_once_in_order", f"call {seq} is {uid}, not the client's")


def _check_outcomes(worker: ModelWorker, owner: Client) -> None:
    inherited = [tuple(entry) for entry in owner.inherited]
    if inherited != worker.state[: owner.base]:
        raise Violation("nothing_acknowledged_lost", "what was adopted is not there any more")
    for seq, *_, result, value in worker.state[owner.base :]:
        seen = owner.landed.get(seq)
        # A failure seen late carries where, not what.
        if seen is not None and seen != (result, value):
            raise Violation("nothing_acknowledged_lost", f"call {seq}: {seen}, now {result, value}")


def _check_reports(client: Client) -> None:
    if len(set(client.reported)) != len(client.reported):
        raise Violation("deferred_once", f"{client.name} was told {client.reported}")
    if strangers := set(client.reported) - client.failing:
        raise Violation("deferred_once", f"{client.name} was told of {strangers}, not its own")


def _check_log(world: World, owner: Client) -> None:
    head = owner.session.log.head
    usable = [epoch.seq for epoch in world.epochs if epoch.usable]
    served = [seq for seq in usable if seq >= owner.base]
    if any(seq + 1 < head for seq in served):
        raise Violation("log_reaches_epochs", f"the log begins at {head}, epochs at {served}")
    if head > 1 and not served:
        raise Violation("log_reaches_epochs", f"the log begins at {head}, there is no epoch")


def _check_end(world: World, client: Client) -> None:
    """Only a newer owner, or a session that cannot go on, may end a client."""
    assert world.row is not None
    superseded = world.row.incarnation != client.session.incarnation
    if isinstance(client.session.error, SessionBusy | SessionFenced) and superseded:
        return
    if isinstance(client.session.error, SessionLost):
        return  # checked where it was refused
    raise Violation("quiescence", f"{client.name} ended with {client.session.error!r}")
