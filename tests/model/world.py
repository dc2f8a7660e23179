"""A small world around the real state machines: programs, links, one gateway, workers, epochs.

`ClientSession`, `HostSession`, the wire format and `registry.decide` are the product's own.
Everything around them is as small as it can be: a worker's device is the list of calls it
has applied, a link is two lists of messages, the journal is a row and a list of epochs.
What can happen next is `World.actions`; `World.act` does it.
"""

from __future__ import annotations

from model.gateway import Gateway
from model.happenings import Happenings
from model.parts import PROGRESS, Action, Bounds, Epoch, ModelWorker
from model.programs import Programs

from outlast.errors import OutlastError, SessionFenced
from outlast.session import wire
from outlast.session.schema import Kind
from outlast.session.wire import Message


class World(Happenings, Programs, Gateway):
    """One state of the whole system."""

    def act(self, action: Action, bounds: Bounds) -> None:
        """Do one of `actions`."""
        name, argument = action
        if name not in PROGRESS and name not in ("commit", "lost"):
            self.used[name] += 1
        method = getattr(self, f"_do_{name}")
        method(argument, bounds)
        self._sweep()

    # -- workers -------------------------------------------------------------------------------

    def _do_serve(self, number: int, bounds: Bounds) -> None:
        connection = self.connections[number]
        worker = self._at(connection.worker)
        assert worker is not None
        frames = connection.to_server.pop(0)
        peer = str(number).encode()
        try:
            self._serve(worker, peer, wire.parse_message(frames), bounds)
        except OutlastError as error:
            refusal = wire.pack_message(
                Kind.REFUSED, error=error.code, retry_after=0.0, message=str(error)
            )
            self._send(peer, (refusal,), bounds)
            if peer == worker.host.peer:
                worker.host.lost()
        self._answer(worker, bounds)

    def _serve(self, worker: ModelWorker, peer: bytes, message: Message, bounds: Bounds) -> None:
        host = worker.host
        if message.kind is Kind.ATTACH:
            host.attach(peer, message)
            worker.forget_queries()
            inventory = {"next_handle": 0, "state": worker.state}
            self._send(peer, tuple(host.attached(inventory)), bounds)
            return
        host.check(peer, message["generation"])
        if message.kind is Kind.ACK:
            host.acknowledge_message(message)
        elif message.kind is Kind.CALLS:
            host.acknowledge(message["acked"])
            if not worker.may_act:
                if bounds.drops_silently:
                    return
                raise SessionFenced("the lease has lapsed")
            skip = host.admit(message["first_seq"], message["count"])
            try:
                worker.run(message["first_seq"], skip, message.frames[0], message.frames[1:])
            finally:
                worker.stumbles = False

    def _answer(self, worker: ModelWorker, bounds: Bounds) -> None:
        peer = worker.host.peer
        if not worker.may_act or peer is None:
            return
        while (frames := worker.host.take_replies(True)) is not None:
            self._send(peer, tuple(frames), bounds)

    def _do_settle(self, worker_id: int, bounds: Bounds) -> None:
        worker = self._at(worker_id)
        assert worker is not None
        worker.settle()
        self._answer(worker, bounds)

    def _do_lost(self, _: None, bounds: Bounds) -> None:
        assert self.worker is not None
        self.worker.host.lost()

    def _do_crash(self, _: None, bounds: Bounds) -> None:
        """End the worker; what it has sent may still arrive."""
        assert self.worker is not None
        for connection in self.connections.values():
            if connection.worker == self.worker.id:
                connection.to_server.clear()
        self.worker = None

    def _do_crash_all(self, _: None, bounds: Bounds) -> None:
        """End gateway and worker: nothing of theirs arrives any more."""
        assert self.worker is not None
        for connection in self.connections.values():
            if connection.worker == self.worker.id:
                connection.to_server.clear()
                connection.to_client.clear()
        self.worker = None

    def _do_takeover(self, _: None, bounds: Bounds) -> None:
        """Let the lease end: another server may start a worker, this one does not know yet."""
        assert self.row is not None
        self.row.token += 1
        self.stale, self.worker = self.worker, None

    def _do_end_stale(self, _: None, bounds: Bounds) -> None:
        """End the fenced worker: its own clock has told it that its lease is over."""
        self.stale = None

    def _do_stumble(self, _: None, bounds: Bounds) -> None:
        """Make the worker give up behind the first call of the next batch."""
        assert self.worker is not None
        self.worker.stumbles = True

    def _do_poison(self, _: None, bounds: Bounds) -> None:
        """Let the device fail under the next call, whatever that is."""
        assert self.worker is not None
        self.worker.fails = True

    def _do_lapse(self, _: None, bounds: Bounds) -> None:
        assert self.worker is not None
        self.worker.may_act = False

    def _do_renew(self, _: None, bounds: Bounds) -> None:
        worker = self.worker
        assert worker is not None
        worker.may_act = True
        self._answer(worker, bounds)

    # -- epochs --------------------------------------------------------------------------------

    def _do_epoch(self, _: None, bounds: Bounds) -> None:
        worker = self.worker
        assert worker is not None
        worker.settle()
        worker.saving = (worker.host.cut(), tuple(worker.state))
        self._answer(worker, bounds)

    def _do_commit(self, _: None, bounds: Bounds) -> None:
        worker = self.worker
        assert worker is not None
        assert worker.saving is not None
        (cut, state), worker.saving = worker.saving, None
        self.epochs.append(Epoch(cut.seq, state, cut.replies))
        worker.host.committed(cut.seq)
        self._prune()
        self._tell_epoch(worker, cut.seq, "", bounds)

    def _do_fail(self, _: None, bounds: Bounds) -> None:
        worker = self.worker
        assert worker is not None
        worker.saving = None
        self._tell_epoch(worker, 0, "the disk is full", bounds)

    def _tell_epoch(self, worker: ModelWorker, seq: int, error: str, bounds: Bounds) -> None:
        host = worker.host
        if host.peer is not None:
            message = wire.pack_message(
                Kind.EPOCH,
                generation=host.generation,
                seq=seq,
                recoverable=host.recoverable,
                error=error,
            )
            self._send(host.peer, (message,), bounds)

    def _do_corrupt(self, index: int, bounds: Bounds) -> None:
        self.epochs[index].corrupt = True

    def _sweep(self) -> None:
        """Forget connections that neither end has anything more of."""
        for number in list(self.connections):
            connection = self.connections[number]
            gone = self._at(connection.worker) is None
            if gone:
                connection.to_server.clear()
            if not connection.open and not connection.to_server and not connection.to_client:
                del self.connections[number]
