"""The gateway of the modelled world: who may attach, and to which worker."""

from __future__ import annotations

from model.parts import TOKEN, Bounds, Client, Connection, Epoch, ModelWorker, Row, State, Violation

from outlast.errors import OutlastError, SessionLost
from outlast.session import registry, wire
from outlast.session.ids import digest
from outlast.session.schema import Intent, Kind, Wish


class Gateway(State):
    """What a HELLO leads to; the order of its steps is the server's."""

    def _do_hello(self, name: str, bounds: Bounds) -> None:
        client = self.clients[name]
        message = wire.parse_message([client.session.hello("model", False, 0)])
        hello = registry.Hello(
            message["session"], message["incarnation"], message["token"], Intent(message["intent"])
        )
        known = None
        if self.row is not None:
            known = registry.Known(self.row.incarnation, digest(TOKEN))
        decision = registry.decide(hello, known)
        if isinstance(decision, OutlastError):
            self._refused(client, decision)
            return
        if decision is registry.Decision.CREATE:
            self.row = Row(hello.incarnation)
        assert self.row is not None
        adopts = decision is registry.Decision.ADOPT
        if message["wishes"] & Wish.FRESH:
            self._make_way()
        if self.worker is None:
            try:
                self._start(message["log_head"], hello.intent is Intent.ADOPT)
            except SessionLost as error:
                self._check_lost(client, message["log_head"])
                self._refused(client, error)
                return
        if adopts:
            self._adopt(hello.incarnation, bounds)
        self._welcome(client, bounds)

    def _make_way(self) -> None:
        """End a worker whose contexts have ended, for a client that wants a fresh one."""
        if self.worker is not None and self.worker.poisoned:
            self.worker = None

    def _start(self, head: int, adopting: bool) -> None:
        """Claim the session, restore the newest epoch that is whole and reaches the log.

        Whoever has not begun a log of its own must not find the session empty.
        """
        assert self.row is not None
        needs_epoch = bool(self.epochs) if adopting else head > 1
        self.row.token += 1
        usable = [e for e in reversed(self.epochs) if e.usable and e.seq + 1 >= head]
        while usable and usable[0].corrupt:
            usable = usable[1:]
        if not usable and needs_epoch:
            raise SessionLost
        self._cut_back(usable[0].seq if usable else 0)
        self.workers += 1
        worker = ModelWorker(self.workers, self.row.token)
        if usable:
            epoch = usable[0]
            worker.state = list(epoch.state)
            for reply in epoch.replies:
                worker.host.reply(reply)
            worker.host.restored(epoch.seq, [e.seq for e in usable[1:2]])
        self.worker = worker

    def _cut_back(self, seq: int) -> None:
        for epoch in self.epochs:
            epoch.usable = epoch.usable and epoch.seq <= seq

    def _check_lost(self, client: Client, head: int) -> None:
        begun = client.session.attachments > 0
        for epoch in self.epochs:
            fits = not begun or head <= epoch.seq + 1 <= client.session.next_seq
            if not epoch.corrupt and fits:
                raise Violation("lost_only_without_a_way", f"the epoch at {epoch.seq} is whole")

    def _adopt(self, incarnation: bytes, bounds: Bounds) -> None:
        """Take and verify an epoch here, make the new owner durable, forget the old one."""
        assert self.row is not None
        self._adoption_epoch()
        self.row.incarnation = incarnation
        assert self.worker is not None
        self.worker.host.adopted()

    def _adoption_epoch(self) -> None:
        worker = self.worker
        assert worker is not None
        worker.host.lost()
        worker.saving = None
        if worker.host.applied:
            worker.settle()
            cut = worker.host.cut()
            self.epochs.append(Epoch(cut.seq, tuple(worker.state), cut.replies))
            self._prune()

    def _do_unrecorded(self, _: None, bounds: Bounds) -> None:
        """Begin an adoption whose row the journal does not take: the old client stays."""
        self._adoption_epoch()
        assert self.worker is not None
        if bounds.forgets_early:
            self.worker.host.adopted()

    def _welcome(self, client: Client, bounds: Bounds) -> None:
        row, worker = self.row, self.worker
        assert row is not None
        assert worker is not None
        row.generation += 1
        secret = row.generation.to_bytes(32, "little")
        worker.host.fence(row.generation, digest(secret))
        welcome = wire.pack_message(
            Kind.WELCOME,
            generation=row.generation,
            window=bounds.window,
            secret=secret,
            heartbeat=1.0,
            timeout=5.0,
            endpoints="",
            server="",
            devices=[],
        )
        client.session.window = bounds.window
        number = self.next_connection
        self.next_connection += 1
        self.connections[number] = Connection(client.name, worker.id, [], [(welcome,)])
        client.connection = number

    def _prune(self) -> None:
        """Remove all but the two newest usable epochs, as soon as that is allowed."""
        usable = [epoch for epoch in self.epochs if epoch.usable]
        self.epochs = usable[-2:]
