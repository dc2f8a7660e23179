"""The programs of the modelled world and their links."""

from __future__ import annotations

from model.parts import BIND, FAILURE, Bounds, Client, State, Violation, record

from outlast.errors import SessionLost, by_code
from outlast.session import wire
from outlast.session.operations import Op
from outlast.session.schema import Intent, Kind
from outlast.session.wire import Message


class Programs(State):
    """What clients do."""

    def _do_program(self, name: str, bounds: Bounds) -> None:
        client = self.clients[name]
        session = client.session
        batch, client.script = client.script[0], client.script[1:]
        for kind in batch:
            if kind in ("ask", "watch"):
                ask = (Op.MEM_INFO, ()) if kind == "ask" else (Op.STREAM_SYNC, (0,))
                pending = session.ask(*ask, BIND)
                client.queries[pending.number] = (session.next_seq - 1, pending)
                continue
            uid = session.next_seq + (1000 if name == "B" else 0)
            seq = session.append(record(kind, uid), BIND)
            client.issued[seq] = uid
            if kind in ("alloc", "read"):
                op = Op.MEM_ALLOC if kind == "alloc" else Op.COPY_DTOH
                client.waiting[seq] = session.expect(op, seq)
            elif kind == "bad":
                client.failing.add(seq)
        session.seal()
        self._flush(client)

    def _do_ack(self, name: str, bounds: Bounds) -> None:
        client = self.clients[name]
        frame = client.session.ack()
        if frame is not None:
            self.connections[client.connection].to_server.append((frame,))

    def _do_beat(self, name: str, bounds: Bounds) -> None:
        """Ask whether the worker is there; nothing else would tell that it has moved on."""
        client = self.clients[name]
        ping = wire.pack_message(Kind.PING, generation=client.session.generation, stamp=0)
        self.connections[client.connection].to_server.append((ping,))

    def _do_break(self, name: str, bounds: Bounds) -> None:
        self._disconnect(self.clients[name], bounds)

    def _do_notice(self, name: str, bounds: Bounds) -> None:
        self._disconnect(self.clients[name], bounds)

    def _do_die(self, name: str, bounds: Bounds) -> None:
        client = self.clients[name]
        client.crashed = True
        if client.connection:
            self._disconnect(client, bounds)

    def _do_receive(self, number: int, bounds: Bounds) -> None:
        connection = self.connections[number]
        client = self.clients[connection.client]
        message = wire.parse_message(connection.to_client.pop(0))
        if not connection.open:
            if message.kind in (Kind.REPLIES, Kind.EPOCH):
                client.session.receive(message)
                self._observe(client)
            return
        if message.kind is Kind.REFUSED:
            self._refused(client, by_code(message["error"])(message["message"]))
            if client.connection:
                self._disconnect(client, bounds)
            return
        if message.kind is Kind.WELCOME:
            frame = client.session.attach(message["generation"], message["secret"])
            connection.to_server.append((frame,))
        elif message.kind is Kind.ATTACHED:
            self._take_attached(client, message)
        else:
            client.session.receive(message)
        self._observe(client)
        if message.kind is Kind.REPLIES and client.session.recovery.wanted:
            self._disconnect(client, bounds)
        self._flush(client)

    def _take_attached(self, client: Client, message: Message) -> None:
        if client.session.intent is Intent.ADOPT and self.epochs and not message["applied"]:
            raise Violation("nothing_acknowledged_lost", "an adopter found nothing")
        try:
            client.session.attached(message)
        except SessionLost:
            raise Violation("lost_only_without_a_way", "a restored worker was refused") from None
        if client.session.generation <= client.accepted:
            raise Violation("one_owner", "a client accepted an older generation")
        client.accepted = client.session.generation

    def _observe(self, client: Client) -> None:
        """Note what the program sees."""
        for seq, pending in client.waiting.items():
            if not pending.done or pending.reply is None:
                continue
            seen = (pending.reply.result, pending.reply.value)
            if client.landed.setdefault(seq, seen) != seen:
                raise Violation("landed_once", f"call {seq} landed as {seen} too")
        for after, query in client.queries.values():
            if query.reply is None or query.reply.result:
                continue
            if query.op is Op.STREAM_SYNC:
                self._check_data(client, after)
            else:
                (free, _) = wire.unpack_reply(Op.MEM_INFO, query.reply.data)
                if free < after:
                    raise Violation("query_order", f"asked behind {after}, answered at {free}")
        while client.session.deferred:
            seq = client.session.deferred[0][0]
            if client.session.take_deferred(seq) != FAILURE:
                raise Violation("deferred_once", f"late failure of call {seq} with another result")
            client.landed[seq] = (FAILURE, seq)
            client.reported.append(seq)

    def _check_data(self, client: Client, after: int) -> None:
        """Raise unless the bytes of all copies are there that were issued by then."""
        for seq, pending in client.waiting.items():
            if seq <= after and not pending.done:
                raise Violation(
                    "data_first", f"{after} is told to be done, copy {seq} is not there"
                )
