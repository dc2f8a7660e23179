"""The worker: one process, one session, one device driver.

Its main thread owns the data socket and executes calls; between them it is never more
than one call away from the socket. The pulse thread never calls the device: it reads the
gateway's channel, and while a call takes long it answers heartbeats in the main thread's
stead. The process ends when the gateway's end of the channel closes.
"""

from __future__ import annotations

import argparse
import json
import logging
import mmap
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.checkpoint_providers import StoredEpoch, open_provider
from outlast.errors import (
    AuthenticationFailed,
    CheckpointCorrupt,
    OutlastError,
    ProtocolError,
    ReplayDiverged,
    RestoreFailed,
)
from outlast.log import configure
from outlast.server.calls.modules import describe
from outlast.server.channel import Channel, Json
from outlast.server.checkpointer import Checkpointer, Identity
from outlast.server.datalink import DataLink
from outlast.server.drivers import get_driver
from outlast.server.executor import Executor
from outlast.server.locks import LifetimeLock
from outlast.session import wire
from outlast.session.handles import Handle, HandleKind
from outlast.session.host import HostSession, State
from outlast.session.schema import HANDLE_STEP, Kind
from outlast.session.wire import Message

log = logging.getLogger(__name__)

#: Calls are not started this long before the lease may end.
LEASE_MARGIN = 2.0  # seconds
#: How often the pulse thread looks whether the main thread is in a long call.
PULSE = 0.25  # seconds
#: Untold calls after which the client is told even while more arrive.
TELL_CALLS = 1024
CALLS_KIND = bytes([Kind.CALLS])


class Worker:
    """One session's worker process.

    Parameters
    ----------
    channel : Channel
        To the gateway.
    issued : mmap
        Page shared with the gateway: the call in hand.
    """

    def __init__(self, channel: Channel, issued: mmap.mmap) -> None:
        self.channel = channel
        self._page = memoryview(issued).cast("Q")
        self._inbox: deque[Json] = deque()
        self._stop = False
        self._exit_code = 0
        self._host = HostSession()
        self._valid_until = float("inf")
        self._drain: Json | None = None
        self._epoch_requested = False
        self._epoch_pending: StoredEpoch | None = None
        self._epoch_wait: Callable[[Json], None] | None = None
        self._last_epoch_seq = 0
        self._last_epoch_at = time.monotonic()
        self._saved: deque[StoredEpoch | OutlastError] = deque()
        #: Batches that wait for acknowledgements.
        self._held: deque[tuple[bytes, list[bytes]]] = deque()

    # -- life ----------------------------------------------------------------------------------

    def main(self) -> int:
        """Serve until told to stop; return the exit code."""
        start = self._await_start()
        if start is None:
            return 0
        configure(start["log_level"])
        self._config = start
        self._identity = Identity(
            start["session"], bytes.fromhex(start["incarnation"]), start["token"]
        )
        self._valid_until = start["valid_until"]
        try:
            self._prepare(start)
        except OutlastError as error:
            self._fail("restore_failed", error)
            return 1
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        self.channel.send(
            {
                "kind": "ready",
                "endpoints": self._link.endpoints,
                "devices": self._device_table(),
                "applied": self._host.applied,
            }
        )
        while not self._stop:
            self._step()
        self._link.close()
        return self._exit_code

    def _await_start(self) -> Json | None:
        while True:
            message = self.channel.receive()
            if message is None or message["kind"] == "start":
                return message

    def _prepare(self, start: Json) -> None:
        self._lock = LifetimeLock(Path(start["lock"]))
        if not self._lock.acquire():
            raise RestoreFailed(f"another worker still holds {start['lock']}")
        self._driver = get_driver(start["device"], **start.get("device_options", {}))
        self._executor = Executor(self._driver, self._host, self._page)
        provider = open_provider(start["provider"], Path(start["state_dir"]))
        self._checkpointer = Checkpointer(provider, self._executor)
        self._link = DataLink(self._driver.fileno(), start["heartbeat"], start["timeout"])
        epoch = start["epoch"]
        if epoch is not None:
            self._checkpointer.restore(epoch["location"], epoch["digest"])
            self._host.restored(epoch["seq"], start["older"], [])
            self._last_epoch_seq = epoch["seq"]
            log.info(
                "session restored",
                extra={"action": "restored", "session": start["session"], "epoch": epoch["seq"]},
            )

    def _fail(self, kind: str, error: OutlastError) -> None:
        log.error("%s: %s", type(error).__name__, error, extra={"action": kind, "code": error.code})
        self.channel.send(
            {
                "kind": kind,
                "code": error.code,
                "message": str(error),
                "corrupt": isinstance(error, CheckpointCorrupt),
            }
        )

    def _device_table(self) -> list[Json]:
        return [
            {
                "ordinal": d.ordinal,
                "name": d.name,
                "uuid": d.uuid,
                "total_memory": d.total_memory,
                "arena_base": d.arena_base,
                "arena_size": d.arena_size,
                "attributes": {str(k): v for k, v in d.attributes.items()},
            }
            for d in self._driver.devices()
        ]

    # -- the pulse thread ----------------------------------------------------------------------

    def _pulse(self) -> None:
        """Read the channel, and stand in for the main thread while it is in a long call."""
        while True:
            if self.channel.ready(PULSE):
                message = self.channel.receive()
                if message is None:
                    # The gateway is gone, and with it everything we may do.
                    os._exit(0)
                self._on_urgent(message)
                self._inbox.append(message)
                self._link.wake()
            in_call = self._executor.in_call
            busy = (in_call[0], time.monotonic() - in_call[1]) if in_call else (0, 0.0)
            self._link.stand_in(self._host.generation, *busy)

    def _on_urgent(self, message: Json) -> None:
        if message["kind"] == "lease":
            self._valid_until = message["until"]
        elif message["kind"] == "drain" and message["hasten"]:
            self._checkpointer.cancelled.set()

    # -- the main loop -------------------------------------------------------------------------

    def _step(self) -> None:
        link, executor = self._link, self._executor
        link.receive(self._timeout())
        while self._inbox:
            self._on_control(self._inbox.popleft())
        while (item := self._next_message()) is not None and not self._stop:
            self._on_frames(*item)
            if self._host.untold >= TELL_CALLS or self._host.crowded:
                executor.settle()
                self._flush(idle=True)
        executor.settle()
        self._flush(idle=True)
        self._housekeeping()

    def _next_message(self) -> tuple[bytes, list[bytes]] | None:
        """Return the next message to handle.

        While the client owes too many acknowledgements, calls are held back (in their
        order) and everything else goes on: the acknowledgement comes that way.
        """
        if self._held and not self._host.crowded:
            return self._held.popleft()
        while self._link.messages:
            item = self._link.messages.popleft()
            frames = item[1]
            is_calls = bool(frames) and frames[0][3:4] == CALLS_KIND
            if not is_calls or not (self._held or self._host.crowded):
                return item
            self._held.append(item)
        return None

    def _timeout(self) -> float:
        if self._inbox or self._saved:
            return 0.0
        if self._drain is not None:
            return 0.005
        return min(0.25, self._link.heartbeat)

    def _flush(self, idle: bool) -> None:
        host = self._host
        while (frames := host.take_replies(idle)) is not None:
            if not self._may_act() or host.peer is None:
                return
            if not self._link.send(host.peer, frames):
                self._lost("its connection is gone")
                return
        if self._executor.journal:
            entries, self._executor.journal = self._executor.journal, []
            self.channel.send({"kind": "journal", "entries": entries})

    def _may_act(self) -> bool:
        """Return whether the lease still covers us; past it another server may act."""
        return time.monotonic() < self._valid_until - LEASE_MARGIN

    def _housekeeping(self) -> None:
        host = self._host
        while self._saved:
            self._on_saved(self._saved.popleft())
        if host.peer is not None and self._link.silent(host.peer):
            self._lost("it has been silent too long")
        if self._drain is not None:
            self._try_drain()
        elif self._wants_epoch():
            self._begin_epoch()

    def _lost(self, reason: str) -> None:
        log.info(
            "client detached: %s",
            reason,
            extra={
                "action": "detached",
                "session": self._identity.session_id,
                "kept": self._host.cached_bytes,
            },
        )
        self._host.lost()

    # -- frames from clients -------------------------------------------------------------------

    def _on_frames(self, peer: bytes, frames: list[bytes]) -> None:
        host = self._host
        try:
            message = wire.parse_message(frames)
            if message.kind is Kind.ATTACH:
                host.attach(peer, message)
                self._link.heard(peer)
                inventory = self._inventory() if host.newcomer else {}
                self._link.send(peer, [host.attached(inventory)])
                return
            if message.kind is Kind.REFUSED:
                return
            host.check(peer, message.fields.get("generation", 0))
            self._on_message(peer, message)
        except (ProtocolError, AuthenticationFailed) as error:
            log.warning("refused: %s", error, extra={"action": "refused"})
            self._refuse(peer, error)
        except ReplayDiverged as error:
            self._fail("diverged", error)
            self._stop, self._exit_code = True, 1
        except OutlastError as error:
            self._refuse(peer, error)

    def _on_message(self, peer: bytes, message: Message) -> None:
        host = self._host
        kind = message.kind
        if kind is Kind.CALLS:
            host.acknowledge(message["acked"])
            if host.state is State.DRAINING or not self._may_act():
                return  # not issued: the client sends it again to whoever comes next
            skip = host.admit(message["first_seq"], message["count"])
            if not message.frames:
                raise ProtocolError("a batch without its call stream")
            stream, *payloads = message.frames
            self._executor.run(message["first_seq"], skip, stream, payloads)
        elif kind is Kind.PING:
            pong = wire.pack_message(
                Kind.PONG,
                generation=host.generation,
                stamp=message["stamp"],
                busy_seq=0,
                busy_for=0.0,
            )
            self._link.send(peer, [pong])
        elif kind is Kind.ACK:
            host.acknowledge_message(message)
        elif kind is Kind.EPOCH_REQUEST:
            self._epoch_requested = True
        elif kind is Kind.BYE:
            self._on_bye(message)

    def _on_bye(self, message: Message) -> None:
        self._lost("it said good-bye")
        if message["end"]:
            self.channel.send({"kind": "ended"})

    def _refuse(self, peer: bytes, error: OutlastError) -> None:
        refusal = wire.pack_message(
            Kind.REFUSED, error=error.code, retry_after=0.0, message=str(error)[:1000]
        )
        self._link.send(peer, [refusal])
        if peer == self._host.peer:
            self._lost(str(error))

    def _inventory(self) -> Json:
        """Return what the session holds, for a client that adopts it."""
        ex = self._executor
        return {
            "next_handle": ex.handles.next_id(HANDLE_STEP),
            "handles": [self._handle_row(h) for h in ex.handles.ordered()],
            "allocations": [
                {"address": a.address, "size": a.size, "context": a.context}
                for a in ex.allocations.values()
            ],
        }

    def _handle_row(self, handle: Handle) -> Json:
        row: Json = {
            "id": handle.id,
            "kind": handle.kind,
            "parents": list(handle.parents),
            "recipe": handle.recipe,
        }
        if handle.kind is HandleKind.MODULE:
            row["info"] = json.loads(describe(self._driver.module_info(handle.real)))
        elif handle.recipe.get("primary"):
            row["retains"] = self._executor.retains.get(handle.recipe["device"], 0)
        return row

    # -- control from the gateway --------------------------------------------------------------

    def _on_control(self, message: Json) -> None:
        kind = message["kind"]
        if kind == "fence":
            self._on_fence(message)
        elif kind == "adopt":
            self._on_adopt(message)
        elif kind == "probe":
            silent = self._link.silence(self._host.peer) if self._host.peer else 1e9
            self._reply(message, silent=silent)
        elif kind == "committed":
            self._on_committed(message)
        elif kind == "delete":
            self._on_delete(message)
        elif kind == "drain":
            if self._drain is None and self._host.state is not State.DRAINING:
                self._begin_drain(message)
            else:
                self._drain = message if self._drain is not None else None
        elif kind == "stop":
            self._stop = True

    def _reply(self, request: Json, **fields: Any) -> None:
        self.channel.send({"kind": "reply", "to": request["id"], **fields})

    def _on_fence(self, message: Json) -> None:
        try:
            self._host.fence(message["generation"], bytes.fromhex(message["secret"]))
        except OutlastError as error:
            self._reply(message, code=error.code, error=str(error))
            return
        self._reply(message, applied=self._host.applied)

    def _on_adopt(self, message: Json) -> None:
        """Take the epoch from which another client's log begins, before its WELCOME."""
        self._host.lost()
        self._held.clear()

        def committed(outcome: Json) -> None:
            if outcome.get("error"):
                self._reply(message, code=outcome.get("code", 10), error=outcome["error"])
                return
            self._host.adopted()
            self._identity = Identity(
                self._identity.session_id,
                bytes.fromhex(message["incarnation"]),
                self._identity.token,
            )
            self._reply(message, applied=self._host.applied)

        if not self._host.applied:
            committed({})
            return
        self._epoch_wait = committed
        self._begin_epoch()

    # -- epochs --------------------------------------------------------------------------------

    def _wants_epoch(self) -> bool:
        host = self._host
        if self._checkpointer.saving or self._epoch_pending is not None:
            return False
        if host.state is not State.RUNNING or self._executor.poisoned:
            return False
        if host.applied <= self._last_epoch_seq:
            self._epoch_requested = False
            return False
        interval = self._config["checkpoint_interval"]
        due = interval and time.monotonic() - self._last_epoch_at >= interval
        return bool(self._epoch_requested or due)

    def _begin_epoch(self) -> None:
        """Cut an epoch here and save it beside the calls that follow."""
        self._epoch_requested = False
        self._last_epoch_at = time.monotonic()
        if self._checkpointer.saving or self._epoch_pending is not None:
            self._epoch_failed(OutlastError("another epoch is being saved"))
            return
        if self._executor.poisoned:
            self._epoch_failed(OutlastError("the context is poisoned"))
            return
        if not self._executor.idle(self._config["epoch_deadline"]):
            self._epoch_failed(OutlastError("the device did not become idle in time"))
            return
        if self._executor.poisoned:
            self._epoch_failed(OutlastError("the context is poisoned"))
            return
        snapshot = self._checkpointer.snapshot(
            self._identity, self._host.generation, self._host.cut(), copy=True
        )

        def done(outcome: StoredEpoch | OutlastError) -> None:
            self._saved.append(outcome)
            self._link.wake()

        self._checkpointer.save_beside(snapshot, done)

    def _on_saved(self, outcome: StoredEpoch | OutlastError) -> None:
        if isinstance(outcome, OutlastError):
            self._epoch_failed(outcome)
            return
        self._epoch_pending = outcome
        self.channel.send(
            {
                "kind": "epoch",
                "seq": outcome.seq,
                "location": outcome.location,
                "size": outcome.size,
                "digest": outcome.digest,
                "created_at": time.time(),
            }
        )

    def _on_committed(self, message: Json) -> None:
        stored, self._epoch_pending = self._epoch_pending, None
        if message.get("error"):
            self._epoch_failed(OutlastError(message["error"]))
            return
        if stored is not None:
            self._host.committed(stored.seq)
            self._last_epoch_seq = stored.seq
        log.info(
            "epoch committed",
            extra={
                "action": "epoch_committed",
                "session": self._identity.session_id,
                "epoch": self._last_epoch_seq,
                "recoverable": self._host.recoverable,
            },
        )
        self._tell_epoch("")
        wait, self._epoch_wait = self._epoch_wait, None
        if wait is not None:
            wait({})

    def _epoch_failed(self, error: OutlastError) -> None:
        log.error(
            "epoch failed: %s",
            error,
            extra={"action": "epoch_failed", "session": self._identity.session_id},
        )
        self._tell_epoch(str(error))
        wait, self._epoch_wait = self._epoch_wait, None
        if wait is not None:
            wait({"error": str(error), "code": error.code})

    def _tell_epoch(self, error: str) -> None:
        host = self._host
        if host.peer is None:
            return
        message = wire.pack_message(
            Kind.EPOCH,
            generation=host.generation,
            seq=self._last_epoch_seq,
            recoverable=host.recoverable,
            error=error[:1000],
        )
        self._link.send(host.peer, [message])

    def _on_delete(self, message: Json) -> None:
        deleted = []
        for number, location in message["epochs"]:
            try:
                self._checkpointer.provider.delete(location)
            except OutlastError as error:
                log.warning("an old epoch stays: %s", error, extra={"action": "delete_failed"})
                continue
            deleted.append(number)
        self.channel.send({"kind": "deleted", "numbers": deleted})

    # -- drain ---------------------------------------------------------------------------------

    def _begin_drain(self, message: Json) -> None:
        """Take no more calls, tell the client, and save what is there."""
        host = self._host
        restoring = host.state is not State.RUNNING
        host.state = State.DRAINING
        self._link.messages.clear()
        self._held.clear()
        self._executor.settle()
        self._flush(idle=True)
        if host.peer is not None:
            bye = wire.pack_message(
                Kind.BYE, generation=host.generation, end=0, reason="the server is draining"
            )
            self._link.send(host.peer, [bye])
        if restoring:
            # Half-replayed state must not become the newest epoch: the stored one stands.
            self._drained(True, "its stored epoch stands")
            return
        self._drain = message

    def _try_drain(self) -> None:
        """Go on with a drain whose earlier save may still be under way."""
        message = self._drain
        assert message is not None
        hasten = message["hasten"]
        if self._checkpointer.saving or self._epoch_pending is not None:
            if hasten or time.monotonic() > message["deadline"]:
                self._drain = None
                self._drained(False, "an earlier save was still under way")
            return
        self._drain = None
        if self._host.applied == self._last_epoch_seq:
            self._drained(True, "nothing new since its last epoch")
        elif self._executor.poisoned:
            self._drained(False, f"its context is poisoned (error {self._executor.poisoned})")
        elif not self._executor.idle(max(0.0, message["deadline"] - time.monotonic())):
            self._drained(False, "busy")
        else:
            self._save_last()

    def _save_last(self) -> None:
        """Save the final epoch; memory is read in place, for nothing runs any more."""
        snapshot = self._checkpointer.snapshot(
            self._identity, self._host.generation, self._host.cut(), copy=False
        )

        def committed(outcome: Json) -> None:
            error = outcome.get("error", "")
            self._drained(not error, error)

        self._epoch_wait = committed

        def done(outcome: StoredEpoch | OutlastError) -> None:
            self._saved.append(outcome)
            self._link.wake()

        self._checkpointer.save_beside(snapshot, done)

    def _drained(self, saved: bool, reason: str) -> None:
        self.channel.send(
            {
                "kind": "drained",
                "saved": saved,
                "reason": reason,
                "epoch": self._last_epoch_seq,
                "applied": self._host.applied,
                "client": self._host.peer is not None,
            }
        )


def main() -> int:
    """Run a worker on inherited descriptors."""
    parser = argparse.ArgumentParser(prog="outlast-worker")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--issued", type=int, required=True)
    options = parser.parse_args()
    # The gateway decides when to stop: a signal to the whole group must not end us before
    # our session is saved.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    page = mmap.mmap(options.issued, mmap.PAGESIZE)
    code = Worker(Channel(options.channel), page).main()
    sys.stdout.flush()
    # Not through interpreter shutdown: a kernel that never ends must not hold us.
    os._exit(code)


if __name__ == "__main__":
    main()
