"""The worker: one process, one session, one device driver.

Its main thread owns the data socket and executes calls; between them it is never more
than one call away from the socket. The pulse thread (`outlast.server.pulse`) never calls the
device: it reads the gateway's channel, and while a call takes long it answers heartbeats in
the main thread's stead. When the gateway dies the worker goes on, and another takes it over.
"""

from __future__ import annotations

import argparse
import gc
import logging
import mmap
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from outlast import __version__
from outlast.checkpoint_providers import open_provider
from outlast.errors import (
    AuthenticationFailed,
    CheckpointCorrupt,
    OutlastError,
    ProtocolError,
    ReplayDiverged,
    SessionFenced,
)
from outlast.log import configure
from outlast.server.adoption import Adoption
from outlast.server.channel import Channel, Json
from outlast.server.checkpointer import Checkpointer, Identity
from outlast.server.datalink import DataLink
from outlast.server.description import device_table, inventory
from outlast.server.doorstep import DOOR_SUFFIX, Doorstep
from outlast.server.drivers import get_driver
from outlast.server.epochs import EpochKeeper
from outlast.server.executor import Executor
from outlast.server.farewell import Farewell
from outlast.server.idle_seals import IdleSeals
from outlast.server.intake import Intake
from outlast.server.journal_feed import JournalFeed
from outlast.server.locks import LifetimeLock
from outlast.server.pulse import Pulse
from outlast.server.restoring import restore
from outlast.server.vigil import Vigil
from outlast.server.workers import DIVERGED
from outlast.session import wire
from outlast.session.host import HostSession, State
from outlast.session.schema import Kind
from outlast.session.wire import Message

# Not by __name__, which is "__main__" here: nobody listens to that one.
log = logging.getLogger("outlast.server.worker")

#: How often the worker looks for silence and for epochs that are due.
CHORES_INTERVAL = 0.02  # seconds
#: How long device work that somebody waits for is waited for, unless there are other calls.
SHORT_WAIT = 200e-6  # seconds
#: What of its start message a worker tells a new gateway.
INTRODUCED = ("session", "incarnation", "token", "device", "provider")


class Worker:
    """One session's worker process.

    Parameters
    ----------
    channel : Channel
        To the gateway.
    issued : mmap
        Page shared with the gateway: the call in hand.
    page : int
        Its descriptor.
    device : str
        Kind of device, made ready before there is a session.
    """

    def __init__(self, channel: Channel, issued: mmap.mmap, page: int, device: str) -> None:
        self.channel = channel
        self._device = device
        self._issued = memoryview(issued).cast("Q")
        self._page = page
        self._feed = JournalFeed(channel)
        #: The program has ended the session.
        self._ended = False
        self._inbox: deque[Json] = deque()
        self._stop = False
        self._chores_at = 0.0
        self._exit_code = 0
        self._host = HostSession()
        self.valid_until = float("inf")

    # -- life ----------------------------------------------------------------------------------

    def main(self) -> int:
        """Serve until told to stop; return the exit code."""
        lack = self._open_device()
        start = self._await_start()
        if start is None:
            return 0
        configure(start["log_level"])
        self._session_id = start["session"]
        self.valid_until = start["valid_until"]
        self._lease_margin: float = start["lease_margin"]
        try:
            if lack is not None:
                raise lack
            self._prepare(start)
        except OutlastError as error:
            self._fail("restore_failed", error)
            return 1
        ready = {
            "endpoints": self._link.endpoints,
            "devices": device_table(self._driver),
            "applied": self._host.applied,
        }
        self._known = {"version": __version__, **ready, **{k: start[k] for k in INTRODUCED}}
        pulse = Pulse(
            self, self.channel, self._link, self._host, self._executor, self._door, self._page
        )
        threading.Thread(target=pulse.run, name="pulse", daemon=True).start()
        self.channel.send({"kind": "ready", **ready})
        gc.freeze()  # what there is by now stays: no collection has to look at it
        while not self._stop:
            self._step()
        self._door.close()
        self._link.close()
        return self._exit_code

    def _open_device(self) -> OutlastError | None:
        """Make the device ready; what is missing is told to whoever needs it."""
        lack = None
        try:
            self._driver = get_driver(self._device)
        except OutlastError as error:
            log.error("no device: %s", error, extra={"action": "no_device"})
            lack = error
        code, text = (lack.code, str(lack)) if lack is not None else (0, "")
        self.channel.send({"kind": "warm", "code": code, "error": text})
        return lack

    def _await_start(self) -> Json | None:
        while True:
            message = self.channel.receive()
            if message is None or message["kind"] == "start":
                return message

    def _prepare(self, start: Json) -> None:
        self._lock = LifetimeLock(Path(start["lock"]))
        # A worker that has lost its gateway ends by itself; one that does not is killed.
        self._lock.evict()
        self._door = Doorstep(Path(start["lock"]).with_suffix(DOOR_SUFFIX))
        self._executor = Executor(self._driver, self._host, self._issued)
        provider = open_provider(start["provider"], Path(start["state_dir"]))
        self._checkpointer = Checkpointer(provider, self._executor)
        self._link = DataLink(self._driver, start["heartbeat"], start["timeout"])
        self._intake = Intake(
            self._link,
            self._host,
            self._executor,
            lambda peer: self._refuse(peer, ProtocolError("calls come, no reply is acknowledged")),
        )
        self._epochs = EpochKeeper(
            Identity(start["session"], bytes.fromhex(start["incarnation"]), start["token"]),
            self._host,
            self._checkpointer,
            self._link,
            self.channel,
            start["checkpoint_interval"],
            start["epoch_deadline"],
            start["grace"],
        )
        self._adoption = Adoption(
            self._host, self._executor, self._epochs, self._link, self.channel
        )
        self._seals = IdleSeals(start, self._executor, self._epochs, self._link)
        deposit = self._seals.deposit
        self._farewell = Farewell(self._host, self._executor, self._epochs, self.channel, deposit)
        self._vigil = Vigil(self._host, self._epochs, self.channel, start["linger"])
        if start["epoch"] is not None:
            self._epochs.last_seq = restore(start, deposit, self._checkpointer, self._host)
        if start.get("faults"):
            from outlast.server.drivers.emulated.faults import inject  # late: few ask for it

            inject(self._driver, start["faults"], self._session_id, self._lock.path)

    def _fail(self, kind: str, error: OutlastError, **fields: int) -> None:
        log.error("%s: %s", type(error).__name__, error, extra={"action": kind, "code": error.code})
        corrupt = isinstance(error, CheckpointCorrupt)
        said = {"kind": kind, "code": error.code, "message": str(error), "corrupt": corrupt}
        self.channel.send({**said, **fields})

    # -- for the pulse thread -------------------------------------------------------------------

    def deliver(self, message: Json) -> None:
        """Take a message of the gateway for the main thread."""
        if message["kind"] == "lease":
            self.valid_until = message["until"]
        elif message["kind"] == "drain" and message["hasten"]:
            self._checkpointer.cancelled.set()
        self._inbox.append(message)
        self._link.wake()

    def introduction(self) -> Json | None:
        """Return what a new gateway has to know of this worker; None if it is at its end."""
        if self._stop or self._host.state is State.DRAINING:
            return None
        return {**self._known, "poisoned": self._executor.poisoned}

    # -- the main loop -------------------------------------------------------------------------

    def _step(self) -> None:
        link, executor = self._link, self._executor
        if executor.waits:
            executor.watch()
        link.receive(self._timeout(), device=bool(executor.waits))
        while self._inbox:
            self._on_control(self._inbox.popleft())
        while (item := self._intake.next()) is not None and not self._stop:
            self._on_frames(*item)
            if self._intake.time_to_tell():
                executor.settle()
                self._flush(idle=True)
        executor.settle()
        if executor.waits and not link.more:
            self._flush(idle=False)  # what is owed already does not wait for this
            # Short kernels are over before a poll would have begun.
            executor.linger(SHORT_WAIT, link.has_more)
        self._flush(idle=not link.more)
        now = time.monotonic()
        if now >= self._chores_at or self._has_news() or self._farewell.waiting:
            self._chores_at = now + CHORES_INTERVAL
            self._housekeeping()

    def _has_news(self) -> bool:
        return self._epochs.has_news or self._seals.in_hand

    def _timeout(self) -> float:
        if self._inbox or self._has_news():
            return 0.0
        return 0.005 if self._farewell.waiting else min(self._intake.patience, self._link.heartbeat)

    def _flush(self, idle: bool) -> None:
        host = self._host
        while host.has_news(idle) and self.may_act():
            frames = host.take_replies(idle)
            assert frames is not None
            assert host.peer is not None
            if not self._link.send(host.peer, frames):
                self._lost("its connection is gone")
        if self._executor.journal:
            self._feed.send(self._executor.journal)

    def may_act(self) -> bool:
        """Return whether the lease still covers us; past it another server may act."""
        return time.monotonic() < self.valid_until - self._lease_margin

    def _housekeeping(self) -> None:
        host = self._host
        if host.peer is not None and self._link.silent(host.peer):
            self._lost("it has been silent too long")
        if host.peer is not None and not self.may_act():
            self._refuse(host.peer, SessionFenced("the lease of this server is over"))
        self._executor.driver.tidy()  # others may need what was freed
        self._epochs.step()
        self._adoption.step()
        if self.may_act():
            self._vigil.step()
        self._seals.step()
        self._farewell.step()

    def _lost(self, reason: str) -> None:
        kept = self._host.cached_bytes
        extra = {"action": "detached", "session": self._session_id, "kept": kept}
        log.info("client detached: %s", reason, extra=extra)
        self._host.lost()
        self._intake.clear()
        self._link.forget()

    # -- frames from clients -------------------------------------------------------------------

    def _on_frames(self, peer: bytes, frames: list[bytes]) -> None:
        host = self._host
        try:
            calls = wire.parse_calls(frames[0]) if frames else None
            if calls is not None:
                self._on_calls(peer, calls, frames)
                return
            message = wire.parse_message(frames)
            if message.kind is Kind.ATTACH:
                host.attach(peer, message)
                self._executor.forget_queries()
                self._link.heard(peer)
                holds = inventory(self._executor) if host.newcomer else {}
                self._link.send(peer, host.attached(holds))
                return
            if message.kind is Kind.REFUSED:
                return
            if message.kind is Kind.PING and not message["generation"]:
                # Asked before its WELCOME came, through the relay.
                self._link.send(peer, [wire.pack_pong(0, message["stamp"])])
                return
            host.check(peer, message.fields.get("generation", 0))
            self._on_message(peer, message)
        except (ProtocolError, AuthenticationFailed) as error:
            log.warning("refused: %s", error, extra={"action": "refused"})
            self._refuse(peer, error)
        except ReplayDiverged as error:
            self._fail("diverged", error, seq=self._executor.seq)
            self._stop, self._exit_code = True, DIVERGED
        except OutlastError as error:
            self._refuse(peer, error)

    def _on_calls(
        self, peer: bytes, header: tuple[int, int, int, int], frames: list[bytes]
    ) -> None:
        generation, first_seq, count, acked = header
        host = self._host
        host.check(peer, generation)
        host.acknowledge(acked)
        if host.state is State.DRAINING:
            return  # not issued: the client sends it again to whoever comes next
        if not self.may_act():
            raise SessionFenced("the lease of this server is over: say HELLO again")
        skip = host.admit(first_seq, count)
        stream = frames[0][wire.CALLS_HEADER.size :]
        self._executor.run(first_seq, count, skip, stream, frames[1:])

    def _on_message(self, peer: bytes, message: Message) -> None:
        host = self._host
        kind = message.kind
        if kind is Kind.PING:
            self._link.send(peer, [wire.pack_pong(host.generation, message["stamp"])])
        elif kind is Kind.ACK:
            host.acknowledge_message(message)
        elif kind is Kind.EPOCH_REQUEST:
            self._epochs.requested = True
        elif kind is Kind.BYE:
            self._on_bye(message)

    def _on_bye(self, message: Message) -> None:
        self._lost("it said good-bye")
        if message["end"]:
            self._checkpointer.cancelled.set()  # nobody will want what is being saved
            self._seals.stop()
            self._ended = True
            self.channel.send({"kind": "ended"})

    def _refuse(self, peer: bytes, error: OutlastError) -> None:
        refusal = wire.pack_message(
            Kind.REFUSED, error=error.code, retry_after=0.0, message=str(error)[:1000]
        )
        self._link.send(peer, [refusal])
        if peer == self._host.peer:
            self._lost(str(error))

    # -- control from the gateway --------------------------------------------------------------

    def _on_control(self, message: Json) -> None:
        kind = message["kind"]
        if kind == "fence":
            self._on_fence(message)
        elif kind == "adopt":
            self._intake.clear()
            self._adoption.prepare(message)
        elif kind == "condition":
            self._reply(message, poisoned=self._executor.poisoned)
        elif kind == "probe":
            self._adoption.probe(message)
        elif kind == "committed":
            self._epochs.on_committed(message)
        elif kind == "delete" and self.may_act():
            self._epochs.delete(message)
        elif kind == "drain":
            self._on_drain(message)
        elif kind == "written":
            self._feed.written(message["last"])
        elif kind == "succeeded":
            self._on_succession()
        elif kind == "stop":
            self._stop = True

    def _on_succession(self) -> None:
        """Tell a new gateway what the one before may not have lived to write."""
        self._feed.resend()
        self._epochs.resend()
        if self._ended:
            self.channel.send({"kind": "ended"})

    def _reply(self, request: Json, **fields: Any) -> None:
        self.channel.send({"kind": "reply", "to": request["id"], **fields})

    def _on_fence(self, message: Json) -> None:
        try:
            self._host.fence(message["generation"], bytes.fromhex(message["secret"]))
            if message["adopter"]:
                self._adoption.complete(message["adopter"])
        except OutlastError as error:
            self._reply(message, code=error.code, error=str(error))
            return
        self._reply(message, applied=self._host.applied)

    def _on_drain(self, message: Json) -> None:
        """Take no more calls, tell the client, and save what is there."""
        host = self._host
        if host.state is State.DRAINING:
            self._farewell.hasten(message)
            return
        replaying = host.state is not State.RUNNING
        client = host.peer is not None
        host.state = State.DRAINING
        self._link.messages.clear()
        self._intake.clear()
        self._executor.settle()
        self._flush(idle=True)
        if host.peer is not None:
            bye = wire.pack_message(
                Kind.BYE, generation=host.generation, end=0, reason="the server is draining"
            )
            self._link.send(host.peer, [bye])
        self._farewell.begin(message, replaying, client)


def main() -> int:
    """Run a worker on inherited descriptors."""
    parser = argparse.ArgumentParser(prog="outlast-worker")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--issued", type=int, required=True)
    parser.add_argument("--device", required=True)
    options = parser.parse_args()
    # The gateway decides when to stop: a signal to the whole group must not end us before
    # our session is saved.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    page = mmap.mmap(options.issued, mmap.PAGESIZE)
    code = Worker(Channel(options.channel), page, options.issued, options.device).main()
    sys.stdout.flush()
    # Not through interpreter shutdown: a kernel that never ends must not hold us.
    os._exit(code)


if __name__ == "__main__":
    main()
