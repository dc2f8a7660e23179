"""What can happen next in the modelled world."""

from __future__ import annotations

from model.parts import PROGRESS, Action, Bounds, Client, State

from outlast.session.host import State as HostState
from outlast.session.phase import Phase


class Happenings(State):
    """The choices of a world."""

    def actions(self, bounds: Bounds) -> list[Action]:
        """Return everything that can happen, progress first and in its order."""
        progress = sorted(self._progress(), key=lambda action: PROGRESS.index(action[0]))
        return [*progress, *self._epochs(bounds), *self._faults(bounds)]

    def _progress(self) -> list[Action]:
        found: list[Action] = []
        for number, connection in self.connections.items():
            if connection.to_client:
                found.append(("receive", number))
            if connection.to_server and self._at(connection.worker) is not None:
                found.append(("serve", number))
        workers = (self.worker, self.stale)
        found.extend(("settle", worker.id) for worker in workers if worker and worker.waits)
        if self.worker is not None and not self.worker.may_act:
            found.append(("renew", None))
        if self.stale is not None:
            found.append(("end_stale", None))
        for name, client in self.clients.items():
            if client.crashed or client.session.phase is Phase.CLOSED:
                continue
            found.extend(self._client_progress(name, client))
        return found

    def _client_progress(self, name: str, client: Client) -> list[Action]:
        session, found = client.session, []
        connection = self.connections.get(client.connection)
        if connection is None:
            if self._may_say_hello(name):
                found.append(("hello", name))
        elif self._at(connection.worker) is None and not connection.to_client:
            found.append(("notice", name))
        elif session.phase is Phase.ATTACHED and session._ack_due:
            found.append(("ack", name))
        elif session.phase is Phase.ATTACHED and self._is_forgotten(client):
            found.append(("beat", name))
        # A program begins once it is attached; a lost link does not stop it after that.
        if client.script and session.attachments:
            found.append(("program", name))
        return found

    def _is_forgotten(self, client: Client) -> bool:
        """Return whether the client's connection stands and its worker has given it up."""
        connection = self.connections[client.connection]
        worker = self._at(connection.worker)
        forgotten = worker is not None and worker.host.peer != str(client.connection).encode()
        return forgotten and not connection.to_server and not connection.to_client

    def _may_say_hello(self, name: str) -> bool:
        """Return whether this client may (come back to) ask for the session now."""
        client = self.clients[name]
        if self.worker is not None and not self.worker.may_act:
            return False  # without a lease the gateway attaches nobody
        if name == "A" or client.session.attachments:
            return True
        if self.row is not None and self.row.incarnation == client.session.incarnation:
            return True
        # An adopter comes when the first client is gone, or silent: its link is down.
        first = self.clients["A"]
        return (
            self.row is not None
            and (first.crashed or not first.connection)
            and (self.worker is None or self.worker.saving is None)
        )

    def _epochs(self, bounds: Bounds) -> list[Action]:
        found: list[Action] = []
        worker = self.worker
        if worker is not None and worker.saving is not None:
            found.append(("commit", None))
            if self._left("fail", bounds):
                found.append(("fail", None))
        elif (
            worker is not None
            and worker.host.state is HostState.RUNNING
            and not worker.poisoned
            and self.used["epoch"] < bounds.limits.get("epoch", 0)
            and worker.host.applied > (worker.host.epochs or [0])[-1]
        ):
            found.append(("epoch", None))
        return found

    def _faults(self, bounds: Bounds) -> list[Action]:
        found: list[Action] = []
        for name, client in self.clients.items():
            if client.connection and self._left("break", bounds):
                found.append(("break", name))
        worker = self.worker
        if worker is not None:
            crashes = ("crash", "crash_all")
            found.extend((fault, None) for fault in crashes if self._left(fault, bounds))
            if self.stale is None and self._left("takeover", bounds):
                found.append(("takeover", None))
            if not worker.stumbles and self._left("stumble", bounds):
                found.append(("stumble", None))
            if not (worker.fails or worker.poisoned) and self._left("poison", bounds):
                found.append(("poison", None))
            if worker.may_act and self._left("lapse", bounds):
                found.append(("lapse", None))
            peer = worker.host.peer
            if peer is not None and not self._is_open(peer):
                found.append(("lost", None))
        for index, epoch in enumerate(self.epochs):
            if epoch.usable and not epoch.corrupt and self._left("corrupt", bounds):
                found.append(("corrupt", index))
        if self.clients["A"].session.attachments and not self.clients["A"].crashed:
            if self._left("die", bounds):
                found.append(("die", "A"))
            if self._left("unrecorded", bounds) and worker is not None and worker.host.applied:
                found.append(("unrecorded", None))
        return found

    def _left(self, fault: str, bounds: Bounds) -> bool:
        spent = sum(n for name, n in self.used.items() if name not in ("epoch", "adopted"))
        return spent < bounds.faults and self.used[fault] < bounds.limits.get(fault, 0)
