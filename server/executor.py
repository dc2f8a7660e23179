"""The executor: does the calls of a session on the device, in their order.

It never waits for the device. Copies to the host and synchronisations become waits on
tickets taken at their place in the order; `settle` answers those that are done, data
before answers. What failed on the device is reported once, with the call that caused it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

from outlast.cuda_types import CUresult
from outlast.errors import ProtocolError
from outlast.server.belongings import Belongings
from outlast.server.calls import ANSWERED, ONE_WAY, QUERIES
from outlast.server.calls.launch import launch, learn
from outlast.server.calls.registry import ONE_WAY_CREATES, STAGED
from outlast.server.drivers.base import Driver
from outlast.server.launches import LAUNCH, Launches
from outlast.server.replay import Replay
from outlast.server.rest import Rest
from outlast.server.wait import Wait
from outlast.session import wire
from outlast.session.cuda import is_sticky
from outlast.session.handles import Handle, HandleKind
from outlast.session.host import HostSession, State
from outlast.session.operations import Op, OpClass
from outlast.session.schema import ReplyKind
from outlast.session.wire import Reply

# Looked at for each call, and slow to get from their classes.
_LAUNCH, _BIND, _OUTCOME, _ORDERS = Op.LAUNCH, Op.BIND, Op.OUTCOME, (Op.MARKED, Op.WAITED)
#: First bytes of records, as far as they are told apart by them.
BIND, ORDERS = int(Op.BIND), tuple(map(int, _ORDERS))
ORDER_SIZE = wire.RECORDS[Op.WAITED].whole.size
_ONE_WAY = OpClass.ONE_WAY
SUCCESS, NOT_READY = int(CUresult.CUDA_SUCCESS), int(CUresult.CUDA_ERROR_NOT_READY)
#: How long a query waits for replayed work before it says that it is not done.
REPLAY_PATIENCE = 5.0  # seconds

#: How often a short wait for the device looks whether there are other calls.
LOOK = 20e-6  # seconds


class Executor(Belongings):
    """Applies call records to a device; holds the session's handles and allocations.

    Parameters
    ----------
    driver : Driver
        The device.
    host : HostSession
        Sequence, replies and acknowledgements.
    issued : mutable sequence of int, optional
        Shared page: ``issued[0]`` is the call about to be made, ``issued[1]`` its
        operation (0: none in hand), so that a call that kills the process can be named.
    """

    def __init__(
        self,
        driver: Driver,
        host: HostSession,
        issued: MutableSequence[int] | memoryview[int] | None = None,
    ) -> None:
        self.driver = driver
        #: The device by CUDA's function names, as both kinds of device have them.
        self.cuda: Any = driver
        self.host = host
        self.issued: MutableSequence[int] | memoryview[int] = (
            issued if issued is not None else [0, 0]
        )
        super().__init__()
        self.launches = Launches(driver, host, self.issued)
        #: Sticky result of the poisoned context, 0 while healthy.
        self.poisoned = 0
        #: (seq, monotonic start) of a call that may take long, for the pulse thread.
        self.in_call: tuple[int, float] | None = None
        self.waits: list[Wait] = []
        #: Bytes of the copies among them.
        self.coming = 0
        #: The BIND that has made it the bound one.
        self._bound = b""
        #: Whether somebody counts on the session as it is.
        self.rest = Rest()
        self._imposed: tuple[Any, ...] | None = None
        self.replay = Replay(driver, self.handles)

    # -- running -------------------------------------------------------------------------------

    def run(
        self, first_seq: int, count: int, skip: int, stream: bytes, payloads: Sequence[Any]
    ) -> None:
        """Apply one admitted batch of ``count`` sequenced calls without its first ``skip``.

        Raises
        ------
        ProtocolError
            A record is malformed; what came before it has been applied.
        ReplayDiverged
            A recorded success cannot be had again.
        """
        seq = first_seq - 1
        start = first_seq + skip
        last = seq + count
        self._imposed = None
        host, issued, driver = self.host, self.issued, self.driver
        self.rest.batch(skip < count)
        self.replay.begin_batch(host.state is State.REPLAYING)
        calls = wire.CallStream(stream, payloads)
        end = len(stream)
        try:
            while calls.offset < end:
                head = stream[calls.offset]
                if head == LAUNCH and start <= seq + 1 <= last:
                    before, seq = seq, self._launch_known(calls, seq, last)
                    if seq > before:
                        continue
                elif (
                    head == BIND
                    and (bound := self._bound)
                    and stream.startswith(bound, calls.offset)
                ):
                    calls.offset += len(bound)
                    continue
                elif head in ORDERS and self.replay.over:
                    calls.offset += ORDER_SIZE
                    continue
                codec, args, data = calls.read()
                if codec.sequenced:
                    seq += 1
                    if seq > last:
                        raise ProtocolError(f"a batch of {count} calls holds more")
                    if seq < start:
                        self._imposed = None
                        continue
                    op = codec.op
                    issued[0] = seq
                    issued[1] = op
                    driver.tag = self.seq = seq
                    if self.poisoned or self._imposed is not None:
                        self._apply_unusual(op, codec.cls, args, data)
                    elif op is _LAUNCH:
                        self._launch(calls, args, data)
                    elif codec.cls is _ONE_WAY:
                        self._one_way(op, args, data)
                    else:
                        self.in_call = (seq, time.monotonic())
                        ANSWERED[op](self, args, data, None)
                    host.advance(seq)
                elif codec.op is _BIND:
                    self._bound = stream[calls.begin : calls.offset]
                    if args[1] != self.context:
                        self._bind(args[1])
                elif codec.op is _OUTCOME:
                    self._imposed = args
                elif codec.op in _ORDERS:
                    if seq + 1 >= start:
                        self._keep_order(codec.op, *args)
                else:
                    self._query(codec.op, args)
            calls.close()
            if seq != last or calls.offset != end:
                raise ProtocolError(f"a batch of {count} calls holds {seq - first_seq + 1}")
        finally:
            self.in_call = None
            issued[1] = 0
            self.replay.end_batch()

    def settle(self) -> None:
        """Answer the waits that are done, in the order they were issued."""
        if not self.waits:
            self.note_fault()
            return
        # Looked at from the last one back: what is done by now was done before whatever comes
        # behind it. The other way round, an answer could overtake the data it waited for.
        done = [self.driver.done(wait.ticket) for wait in reversed(self.waits)]
        self.note_fault()  # after that, or what failed in between would be answered as done
        left = []
        for wait in self.waits:
            if done.pop():
                self._end_wait(wait)
            elif time.monotonic() > wait.until:
                self.host.reply(Reply(wait.kind, wait.number, NOT_READY, 0, b""))
            else:
                left.append(wait)
        self.waits = left

    def linger(self, timeout: float, called: Callable[[], bool]) -> None:
        """Give the newest waits a moment, and answer what is done by then.

        Those that had theirs are announced by the device's descriptor.

        Parameters
        ----------
        timeout : float
            Seconds.
        called : callable
            Whether there are other calls to do: they end it.
        """
        tickets = [wait.ticket for wait in self.waits if not wait.watched]
        if not tickets:
            return
        end = time.monotonic() + timeout
        while not self.driver.wait_any(tickets, LOOK):
            if called() or time.monotonic() >= end:
                return
        self.settle()

    def watch(self) -> None:
        """Have the device's descriptor announce the end of each wait."""
        for wait in reversed(self.waits):
            if wait.watched:
                break  # and so are all before it
            wait.watched = True
            self.driver.watch(wait.ticket)

    def forget_queries(self) -> None:
        """Forget the queries under way: a client that attaches asks again what it still asks."""
        self.waits = [wait for wait in self.waits if wait.kind is not ReplyKind.ANSWER]

    def idle(self, timeout: float) -> bool:
        """Wait until the device has done everything, and settle; False after ``timeout``."""
        done = self.driver.wait(self.driver.ticket(), timeout)
        self.settle()
        return done

    # -- for the calls -------------------------------------------------------------------------

    def answer(self, result: int, value: int = 0, data: bytes = b"") -> None:
        """Answer the call in hand."""
        self._own_up(result)
        self.host.reply(Reply(ReplyKind.OUTCOME, self.seq, result, value, data))

    def wait_for(
        self, ticket: int, kind: ReplyKind, number: int, data: memoryview | None = None
    ) -> None:
        """Answer ``number`` once ``ticket`` is done."""
        if data is None and not self.waits and self.driver.done(ticket):
            # At once: there is nothing that the answer could overtake.
            self.note_fault()
            self.host.reply(Reply(kind, number, self.poisoned))
            return
        self.waits.append(Wait(ticket, kind, number, data))
        if data is not None:
            self.coming += len(data)

    def poll(
        self, ticket: int, number: int, finish: Callable[[], tuple[int, bytes]] | None = None
    ) -> tuple[int, bytes] | None:
        """Answer a query: whether work is done, or what ``finish`` makes of it when it is.

        What was replayed may have been seen done by the program, so it is waited for; but
        not for ever, because work may wait for what the program does after the query.
        """
        until = float("inf")
        if not self.driver.done(ticket):
            if not self.replay.covers(ticket):
                return NOT_READY, b""
            until = time.monotonic() + REPLAY_PATIENCE
        # Through the queue, so that it does not overtake the data of copies before it.
        self.waits.append(Wait(ticket, ReplyKind.ANSWER, number, None, finish, until))
        return None

    def note_fault(self) -> None:
        """Look whether the device has failed since; report that once, with its cause."""
        if self.poisoned:
            return
        fault = self.driver.fault()
        if fault is not None:
            self.rest.end()
            self.poisoned = fault.result
            self.host.reply(Reply(ReplyKind.DEFERRED, fault.tag, fault.result, self.context))

    def rebind(self) -> None:
        """Make the device's current context the bound one again."""
        context, self.context, self._bound = self.context, -1, b""
        self._bind(context)

    def drop_handle(self, handle: int) -> list[Handle]:
        """Remove an object with all that was made from it, and journal that."""
        self.launches.forget()
        return super().drop_handle(handle)

    # -- inside --------------------------------------------------------------------------------

    def _end_wait(self, wait: Wait) -> None:
        result: int = self.poisoned
        data: memoryview | bytes = b""
        if wait.data is not None:
            self.coming -= len(wait.data)
        if not result and wait.finish is not None:
            result, data = wait.finish()
            self._own_up(result)
        elif not result and wait.data is not None:
            data = wait.data
        self.host.reply(Reply(wait.kind, wait.number, result, 0, data))

    def _one_way(self, op: Op, args: tuple[Any, ...], data: Any) -> None:
        result = ONE_WAY[op](self, args, data)
        if result:
            if op in ONE_WAY_CREATES:
                self.handles.fail(args[0])
            self._late(int(result))

    def _launch(self, calls: wire.CallStream, args: tuple[Any, ...], data: Any) -> None:
        """Launch what is not known yet."""
        result = launch(self, args, data)
        if result:
            self._late(int(result))
        else:
            learn(self, calls, args, len(data))

    def _launch_known(self, calls: wire.CallStream, seq: int, last: int) -> int:
        """Make the launches that come next as far as they are known; return the last one's seq."""
        if self.poisoned or self._imposed is not None:
            return seq
        seq, result = self.launches.follow(calls, seq, last)
        self.seq = seq
        if result:
            self._late(result)
        return seq

    def _apply_unusual(self, op: Op, cls: OpClass, args: tuple[Any, ...], data: Any) -> None:
        """Apply a call under a recorded outcome or in a poisoned context."""
        imposed, self._imposed = self._imposed, None
        if imposed is not None:
            if imposed[0] != self.seq:
                raise ProtocolError(f"an outcome of call {imposed[0]} precedes call {self.seq}")
            if imposed[1] != SUCCESS:
                # It failed the first time: skip it, and let a sticky failure stay one.
                if is_sticky(imposed[1]):
                    self.poisoned = imposed[1]
                elif op in STAGED:
                    self.staged.pop(args[0], None)
                elif op in ONE_WAY_CREATES:
                    self.handles.fail(args[0])
                return
        if self.poisoned:
            if cls is OpClass.ANSWERED and imposed is None:
                self.answer(self.poisoned)
            return
        if cls is OpClass.ANSWERED:
            self.in_call = (self.seq, time.monotonic())
            ANSWERED[op](self, args, data, imposed)
        else:
            self._one_way(op, args, data)

    def _late(self, result: int) -> None:
        """Report a one-way call's failure."""
        if is_sticky(result):
            self._own_up(result)
        else:
            self.host.reply(Reply(ReplyKind.DEFERRED, self.seq, result, self.context))

    def _own_up(self, result: int) -> None:
        """Report what poisoned the context, before any answer shows that something has.

        So whoever has seen the answer has landed the failure too, and a replay imposes it.
        """
        if not result or self.poisoned or not is_sticky(result):
            return
        self.note_fault()
        if not self.poisoned:  # no fault names another call
            self.rest.end()
            self.poisoned = result
            self.host.reply(Reply(ReplyKind.DEFERRED, self.seq, result, self.context))

    def _keep_order(self, op: Op, context: int, number: int, what: int, handle: int) -> None:
        bound = self.context
        if context != bound:
            self._bind(context)  # the special streams are those of the bound context
        self.replay.keep_order(op, number, what, handle)
        if context != bound:
            self._bind(bound)

    def _bind(self, context: int) -> None:
        real = self.handles.real[HandleKind.CONTEXT].get(context, 0)
        self.cuda.cuCtxSetCurrent(real)
        self.context = context
        self.launches.bind(context)

    def _query(self, op: Op, args: tuple[Any, ...]) -> None:
        self.note_fault()
        number = args[0]
        if self.poisoned:
            # Behind the copies before it, so that no answer overtakes data.
            self.wait_for(self.driver.ticket(), ReplyKind.ANSWER, number)
            return
        answered = QUERIES[op](self, args)
        if answered is not None:
            result, data = answered
            self._own_up(result)
            self.host.reply(Reply(ReplyKind.ANSWER, number, int(result), 0, data))
