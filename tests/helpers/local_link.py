"""A session on an emulated device inside this process: the reference of what a remote one does.

The calls of the client API are packed and done as a worker does them, with nothing in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from outlast.server.description import device_table
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.ids import HandleAllocator
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME, ReplyKind
from outlast.shim.linkage import COPY_UNIT, Lane, Reply

T = TypeVar("T")
ENOUGH = 60.0  # seconds


class Landed:
    """An answer that has come."""

    done = True

    def __init__(self, result: int) -> None:
        self.result = result

    def wait(self) -> None:
        """Return at once."""


class LocalLink:
    """A `Link` whose session is here. A thread of its own calls the device, as in a worker."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self.devices = device_table(driver)
        self.session_id = "local"
        self.inventory: dict[str, Any] = {}
        self.stream_credits = 512
        self._driver = driver
        self._host = HostSession()
        self._host.peer = b"local"
        self._executor = Executor(driver, self._host)
        self._thread = ThreadPoolExecutor(1, "device")
        self._answers: dict[tuple[ReplyKind, int], Reply] = {}
        self._late: dict[int, list[int]] = {}
        self._local = threading.local()
        self._handles = HandleAllocator()
        self._queries = 0

    @property
    def next_seq(self) -> int:
        return self._host.applied + 1

    def send(self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None) -> int:
        return self.send_record(wire.pack_record(op, *args, data=data), lane)

    def send_record(self, head: bytes, lane: Lane | None = None) -> int:
        bind = self._bind()
        return self._do(lambda: self._apply(bind, head, lane))

    def call(
        self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None
    ) -> Reply:
        record, bind = wire.pack_record(op, *args, data=data), self._bind()

        def do() -> Reply:
            seq = self._apply(bind, record, lane)
            return self._answer(ReplyKind.OUTCOME, seq)

        return self._do(do)

    def query(self, op: Op, *args: int) -> Reply:
        bind = self._bind()

        def do() -> Reply:
            self._queries += 1
            record = wire.pack_record(op, self._queries, *args)
            self._executor.run(self.next_seq, 0, 0, bind + record, [])
            return self._answer(ReplyKind.ANSWER, self._queries)

        return self._do(do)

    def watch(self, op: Op, *args: int) -> Landed:
        return Landed(self.query(op, *args).result)

    def look(self) -> None:
        """Do nothing: all has come."""

    def read_into(self, address: int, size: int, lane: Lane, flags: int, out: memoryview) -> int:
        for start in range(0, size, MAX_FRAME):
            length = min(MAX_FRAME, size - start)
            args = (address + start, lane.handle, length, flags)
            reply = self.call(Op.COPY_DTOH, *args, lane=lane)
            if reply.result:
                return reply.result
            out[start : start + length] = reply.data
        lane.done, lane.finished = lane.last, lane.taken
        return 0

    def read_later(
        self, address: int, size: int, lane: Lane, flags: int, out: memoryview
    ) -> Landed:
        return Landed(self.read_into(address, size, lane, flags, out))

    def write_from(self, address: int, lane: Lane, flags: int, data: memoryview) -> int:
        for start in range(0, len(data), MAX_FRAME):
            part = bytes(data[start : start + MAX_FRAME])
            self.send(Op.COPY_HTOD, address + start, lane.handle, flags, data=part, lane=lane)
            lane.taken += len(part) // COPY_UNIT
        return 0

    def new_handle(self) -> int:
        return self._do(self._handles.take)

    def bind(self, context: int) -> None:
        self._local.context = context

    def take_deferred(self, context: int) -> int:
        late = self._late.get(context)
        return late.pop(0) if late else 0

    def sticky(self) -> int:
        return self._executor.poisoned

    def statistics(self) -> dict[str, Any]:
        return {}

    def close(self, end: bool = False) -> None:
        self._thread.shutdown()
        self._driver.close()

    # -- in the device's thread ----------------------------------------------------------------

    def _do(self, call: Callable[[], T]) -> T:
        return self._thread.submit(call).result(ENOUGH)

    def _bind(self) -> bytes:
        context = getattr(self._local, "context", 0)
        return wire.pack_record(Op.BIND, 1, context)

    def _apply(self, bind: bytes, record: bytes, lane: Lane | None) -> int:
        seq = self._host.applied + 1
        self._executor.run(seq, 1, 0, bind + record, [])
        if lane is not None:
            lane.last = seq
            lane.taken += 1
        return seq

    def _answer(self, kind: ReplyKind, number: int) -> Reply:
        assert self._executor.idle(ENOUGH)
        while frames := self._host.take_replies(idle=False):
            stream, *payloads = wire.parse_message(frames).frames
            for reply in wire.iter_replies(stream, payloads):
                if reply.kind is ReplyKind.DEFERRED:
                    self._late.setdefault(reply.value, []).append(reply.result)
                else:
                    data = bytes(reply.data)
                    self._answers[reply.kind, reply.number] = Reply(reply.result, reply.value, data)
        self._host.acknowledge(self._host.applied)
        return self._answers.pop((kind, number))
