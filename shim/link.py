"""The link of a client process: the session's state machine with sockets, threads and time.

Whoever waits for an answer moves the frames itself (there is no hand-over to an I/O
thread on the way of a call); while one thread does, others wait on a condition, and a
thread that only sends wakes it if it must. The link thread flushes what no one waits for,
keeps heartbeats, and brings a lost connection back.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import Any

from outlast.errors import LinkClosed, LogFull
from outlast.messages import keep_freed_memory
from outlast.session import wire
from outlast.session.client import ClientSession
from outlast.session.ids import HandleAllocator
from outlast.session.operations import Op
from outlast.session.pending import Pending
from outlast.session.phase import Phase
from outlast.session.schema import INLINE_LIMIT, MAX_FRAME, Kind
from outlast.shim.caretaker import Caretaker
from outlast.shim.late_answer import LateAnswer
from outlast.shim.linkage import COPY_UNIT, Lane, Reply
from outlast.shim.settings import LinkSettings
from outlast.shim.slabs import Slabs

log = logging.getLogger("outlast.link")

_ATTACHED = Phase.ATTACHED
#: How long a wait for others' progress lasts before it looks again.
WAIT = 0.05  # seconds
#: Bytes not applied yet at which a fast program waits.
BACKLOG_LIMIT = 64 << 20
#: How long a call waits for a checkpoint that makes room in the log: one of a device full of data
#: takes minutes, and it can take two.
PATIENCE = 600.0  # seconds
#: How long a closing process tries to send what it still has.
LINGER = 1.0  # seconds
#: How long it waits for a connection that it has lost only now (by Ctrl-C, say), and for the
#: thread that uses it.
RETURN = 0.3  # seconds
#: How long its last message may take to leave.
FAREWELL = 0.3  # seconds


class SessionLink:
    """A client process's link to its session; implements `outlast.shim.linkage.Link`.

    Parameters
    ----------
    session : ClientSession
        The state machine.
    settings : LinkSettings
        Endpoint, timeouts and limits.
    """

    def __init__(self, session: ClientSession, settings: LinkSettings) -> None:
        self.settings = settings
        self.session_id = session.session_id
        self.stream_credits = settings.stream_credits
        self.devices: list[dict[str, Any]] = []
        self.inventory: dict[str, Any] = {}
        self._session = session
        self._mutex = threading.Lock()
        self._slabs = Slabs()
        self._caretaker = Caretaker(session, settings, self._mutex, self._slabs.trim)
        self._pump = self._caretaker.pump
        self._pid = os.getpid()
        self._local = threading.local()
        self._threads = itertools.count(1)
        self._handles = HandleAllocator()
        #: The program was told that it waits for checkpoints.
        self._warned = False

    # -- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Attach for the first time, within the connect timeout.

        Raises
        ------
        ServerUnreachable
            No server answered; names endpoint, attempts and elapsed time.
        OutlastError
            The server's typed refusal.
        """
        self._caretaker.reattach(self.settings.connect_timeout)
        self.devices = self._caretaker.devices
        self._handles = HandleAllocator(self._session.first_handle)
        self.inventory = self._session.inventory
        self._caretaker.start()

    def close(self, end: bool = False) -> None:
        """Have what is pending applied (for a moment at most), say good-bye, close everything.

        Parameters
        ----------
        end : bool
            End the session on the server too.
        """
        pump, stop = self._pump, self._caretaker.stop
        if os.getpid() != self._pid or stop.is_set():
            return
        deadline = time.monotonic() + LINGER
        with self._mutex:
            self._session.seal()
            self._session.recovery.enabled = False  # nobody would see what comes of it
            while pump.transport is None and self._session.error is None:
                if time.monotonic() > pump.lost_at + RETURN:
                    break
                pump.changed.wait(0.02)
            # Until it is applied, not only sent: a server that stops right now would drop it.
            while not self._session.settled and time.monotonic() < deadline:
                if pump.transport is None or self._session.phase is not Phase.ATTACHED:
                    break
                pump.turn(0.02)
            pump.take_over(RETURN)
            self._say_bye(end)
            stop.set()
            self._session.close(LinkClosed("the session was closed"))
            pump.changed.notify_all()
            pump.wake()
        self._caretaker.join(LINGER)
        with self._mutex:
            while pump.polling:
                pump.changed.wait(0.1)
            if pump.transport is not None:
                pump.transport.close(FAREWELL)
                pump.transport = None
            self._session.log.close()
        self._slabs.close()

    def _say_bye(self, end: bool) -> None:
        if self._pump.transport is None or self._pump.polling:
            return
        bye = wire.pack_message(
            Kind.BYE, generation=self._session.generation, end=int(end), reason="closed"
        )
        self._pump.transport.send([bye])

    @property
    def reconnects(self) -> int:
        """How often a lost connection came back."""
        return self._caretaker.reconnects

    @property
    def next_seq(self) -> int:
        """Seq of the next state-changing call."""
        return self._session.next_seq

    def reconnect(self) -> None:
        """Give the connection up; the link attaches anew by itself, nothing is lost."""
        with self._mutex:
            pump = self._pump
            while not pump.take_over(WAIT):
                pass
            if pump.transport is not None:
                pump.disconnect(pump.transport, "a new attachment was asked for")

    def request_epoch(self) -> None:
        """Ask the server for a checkpoint; it is taken behind the calls made so far."""
        with self._mutex:
            self._session.seal()
            while not self._pump.take_over(WAIT) or self._pump.transport is None:
                if self._session.error is not None:
                    raise self._session.error
                self._pump.changed.wait(WAIT)
            self._pump.push()
            request = wire.pack_message(Kind.EPOCH_REQUEST, generation=self._session.generation)
            self._pump.transport.send([request])

    # -- calls ----------------------------------------------------------------------------------

    def send_record(self, head: bytes, lane: Lane | None = None) -> int:
        """Append a one-way call whose record is complete already and return its seq.

        It is counted in ``lane``, the stream it goes to.
        """
        session = self._session
        with self._mutex:
            if not session.open.calls or session.phase is not _ATTACHED:
                self._begin_batch()
            batch = session.open
            seq = session.append(head, self._bind())
            if lane is not None:
                lane.last = seq
                lane.taken += 1
            if session.open is not batch:
                self._pump.push()
            return seq

    def send(self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None) -> int:
        """Append a one-way call to the log and return its seq; never wait for the server."""
        return self.send_record(wire.pack_record(op, *args, data=data), lane)

    def call(
        self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None
    ) -> Reply:
        """Send an answered call and wait for its outcome.

        An image longer than a frame goes in pieces, at consecutive places in the order.
        """
        pieces = []
        if data is not None and len(data) > MAX_FRAME:
            *pieces, data = (data[i : i + MAX_FRAME] for i in range(0, len(data), MAX_FRAME))
        payload = data if data is not None and len(data) > INLINE_LIMIT else None
        record = wire.pack_record(
            op, *args, data=None if payload else data, payload=payload is not None
        )
        with self._mutex:
            self._admit()
            for piece in pieces:
                part = wire.pack_record(Op.IMAGE_PART, args[0], payload=True)
                self._session.append(part, self._bind(), piece)
            seq = self._session.append(record, self._bind(), payload)
            end = None
            if lane is not None:
                lane.last = seq
                lane.taken += 1
                end = self._session.ends.ask(op, (lane.handle,), self._bind())
            pending = self._session.expect(op, seq, None, end)
            self._session.seal()
            return self._wait(pending)

    def query(self, op: Op, *args: int) -> Reply:
        """Ask a query and wait for its answer; the link adds the query's number."""
        with self._mutex:
            self._admit()
            return self._wait(self._session.ask(op, args, self._bind()))

    def watch(self, op: Op, *args: int) -> LateAnswer:
        """Ask a query, flush it, and go on; its answer comes ahead of those of later waits."""
        with self._mutex:
            self._admit()
            pending = self._session.ask(op, args, self._bind())
            self._pump.push()
        self._caretaker.rouse()
        return LateAnswer([pending], self._wait_for)

    def look(self) -> None:
        """Take in what has come, without waiting for more."""
        with self._mutex:
            self._pump.look()

    def read_into(self, address: int, size: int, lane: Lane, flags: int, out: memoryview) -> int:
        """Copy device bytes into ``out`` and wait until they are there. Returns CUresult."""
        with self._mutex:
            pieces: list[Pending] = []
            try:
                self._issue_read(pieces, address, size, lane, flags, out)
                taken = lane.taken
                results = [self._wait(piece).result for piece in pieces]
            finally:
                # Whoever gives up (Ctrl-C) takes the memory away: nothing may land there later.
                for piece in pieces:
                    piece.out = None
        failed = next((result for result in results if result), 0)
        if not failed and pieces:
            lane.done = max(lane.done, pieces[-1].number)
            lane.finished = max(lane.finished, taken)
        return failed

    def read_later(
        self, address: int, size: int, lane: Lane, flags: int, out: memoryview
    ) -> LateAnswer:
        """Copy device bytes into ``out``, ahead of every answer that tells that it is done."""
        with self._mutex:
            pieces: list[Pending] = []
            try:
                self._issue_read(pieces, address, size, lane, flags, out)
                if self._session.has_unsent:
                    self._pump.push()
            except BaseException:
                for piece in pieces:
                    piece.out = None
                raise
        self._caretaker.rouse()
        return LateAnswer(pieces, self._wait_for)

    def _issue_read(
        self,
        pieces: list[Pending],
        address: int,
        size: int,
        lane: Lane,
        flags: int,
        out: memoryview,
    ) -> None:
        """Append a copy to the host, under the mutex; what is to be waited for is in ``pieces``."""
        view = out.cast("B") if out.nbytes else out
        if size > MAX_FRAME:
            keep_freed_memory()
        self._admit()
        bind = self._bind()
        # All pieces at consecutive places in the order: nothing comes in between.
        for offset in range(0, size, MAX_FRAME):
            length = min(MAX_FRAME, size - offset)
            record = wire.pack_record(Op.COPY_DTOH, address + offset, lane.handle, length, flags)
            lane.last = seq = self._session.append(record, bind)
            lane.taken += 1 + length // COPY_UNIT
            target = view[offset : offset + length]
            last = offset + length == size
            end = self._session.ends.ask(Op.COPY_DTOH, (lane.handle,), bind) if last else None
            pieces.append(self._session.expect(Op.COPY_DTOH, seq, target, end))
        self._session.seal()

    def write_from(self, address: int, lane: Lane, flags: int, data: memoryview) -> int:
        """Take the bytes of ``data`` and copy them to the device. Returns CUresult."""
        view = data.cast("B") if data.nbytes else data
        for offset in range(0, len(view), MAX_FRAME):
            piece = self._slabs.copy(view[offset : offset + MAX_FRAME])
            inline = len(piece) <= INLINE_LIMIT
            record = wire.pack_record(
                Op.COPY_HTOD,
                address + offset,
                lane.handle,
                flags,
                data=bytes(piece) if inline else None,
                payload=not inline,
            )
            with self._mutex:
                self._admit()
                lane.last = self._session.append(record, self._bind(), None if inline else piece)
                lane.taken += 1 + len(piece) // COPY_UNIT
                if self._session.has_unsent:
                    self._pump.push()
                if self._slabs.costly and self.settings.careful_limit:
                    self._session.log.tighten(self.settings.careful_limit)
        self._caretaker.rouse()
        return 0

    def new_handle(self) -> int:
        """Return a virtual handle that was never used in this session."""
        with self._mutex:
            return self._handles.take()

    def bind(self, context: int) -> None:
        """Note the calling thread's current context (0: none) for its next calls."""
        number = getattr(self._local, "number", 0)
        if not number:
            number = self._local.number = next(self._threads)
        self._local.bind = wire.pack_record(Op.BIND, number, context)

    def take_deferred(self, context: int) -> int:
        """Return, once, the CUresult of a one-way call of ``context`` that failed, else 0."""
        session = self._session
        if not session.deferred:
            return 0
        with self._mutex:
            return session.take_deferred(context)

    def sticky(self) -> int:
        """Return the CUresult that poisoned the process's contexts, else 0."""
        return self._session.sticky

    def statistics(self) -> dict[str, Any]:
        """Return counts of what the link went through."""
        return {
            "replayed_calls": self._session.replayed_calls,
            "reconnects": self._caretaker.reconnects,
            "recoveries": self._session.recovery.count,
            "stalls_s": [round(stall, 3) for stall in self._caretaker.stalls],
        }

    def _wait_for(self, pending: Pending) -> None:
        with self._mutex:
            self._wait(pending)

    # -- under the mutex ------------------------------------------------------------------------

    def _bind(self) -> bytes:
        try:
            bind: bytes = self._local.bind
        except AttributeError:
            self.bind(0)
            bind = self._local.bind
        return bind

    def _begin_batch(self) -> None:
        """See that there is room for a batch, which is small, and somebody to send it."""
        session = self._session
        if (
            session.backlog > BACKLOG_LIMIT
            or session.log.full
            or session.phase is not Phase.ATTACHED
        ):
            self._admit()
        if self._caretaker.asleep:
            self._caretaker.rouse()

    def _admit(self) -> None:
        """Wait until a call may be logged; raise if none ever may."""
        session = self._session
        since = 0.0
        while True:
            if session.error is not None:
                raise session.error
            room = session.log.check_room()
            if room and session.backlog <= BACKLOG_LIMIT:
                return
            if room:
                self._pump.turn(WAIT)
                continue
            since = since or time.monotonic()
            self._wait_for_room(since)

    def _wait_for_room(self, since: float) -> None:
        """Wait for a part of the log to be on disk, or for an epoch that makes it superfluous."""
        session, calls = self._session, self._session.log
        waited = time.monotonic() - since
        if session.sticky or waited > PATIENCE:
            raise LogFull(
                f"the call log holds {calls.bytes} bytes, there is no room for more, and no "
                f"checkpoint has come in {waited:.0f} s",
                bytes=calls.bytes,
            )
        if not calls.spilling:
            self._warn_of_limit()
            self._pump.turn(WAIT)
            return
        self._pump.turn(0.0)
        self._mutex.release()
        try:
            calls.wait(WAIT)
        finally:
            self._mutex.acquire()

    def _warn_of_limit(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "calls wait for checkpoints, which are slower than the program: the call log "
                "has no room left (LUPINE_REPLAY_HARD_LIMIT, LUPINE_SPILL_DIR)",
                extra={"action": "log_full", "session": self.session_id},
            )

    def _wait(self, pending: Pending) -> Reply:
        while not pending.done:
            self._pump.turn(WAIT)
        if pending.error is not None:
            raise pending.error
        reply = pending.reply
        assert reply is not None
        return Reply(reply.result, reply.value, reply.data)
