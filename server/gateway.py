"""The gateway: where clients say HELLO, and what supervises the workers.

One loop over one ROUTER, the workers' channels, the journal thread and the signals. It
never touches CUDA or SQL itself. HELLOs run as flows (`outlast.server.attachments`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import zmq

from outlast.config import ServeConfig
from outlast.errors import ConfigError, OutlastError, ProtocolError
from outlast.messages import stay_in_cache
from outlast.migrations import current_revision, upgrade
from outlast.server import notice
from outlast.server.attachments import Attachments
from outlast.server.database import DatabaseThread
from outlast.server.datalink import MAX_MESSAGE
from outlast.server.drain import Drain
from outlast.server.kept import KeptMemory
from outlast.server.leftovers import Leftovers
from outlast.server.orphans import Orphans
from outlast.server.pool import WorkerPool
from outlast.server.relay import QUEUE, Relay
from outlast.server.sessions import SessionTable
from outlast.server.succession import Succession
from outlast.session import wire
from outlast.session.schema import PROTOCOL_VERSION, STREAM_FORMAT, Kind
from outlast.session.store import Store

log = logging.getLogger(__name__)

#: Formats of stored call streams that this version applies: its own and the one before.
READABLE_FORMATS = (STREAM_FORMAT, STREAM_FORMAT - 1)
#: How long after the start a worker is kept ready for each session that there was before.
RETURN = 10.0  # seconds
#: Messages handled before other sources get their turn.
BURST = 256


class Gateway:
    """Event loop of the server process.

    Parameters
    ----------
    config : ServeConfig
        Settings.
    server_id : str
        Stable id of this state folder's server.
    pool : WorkerPool
        Where workers come from; the gateway closes it.
    """

    def __init__(self, config: ServeConfig, server_id: str, pool: WorkerPool) -> None:
        self.config = config
        self.server_id = server_id
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._exit_code: int | None = None
        #: The shutdown under way, if any.
        self.drain: Drain | None = None
        #: This process ends and its workers stay.
        self._leaving = False
        self.database = DatabaseThread(config.database)
        self.watch(self.database.fileno(), self.database.deliver)
        # The lease is renewed beside everything else: no slow transaction may cost it.
        self._lease = DatabaseThread(config.database)
        self.watch(self._lease.fileno(), self._lease.deliver)
        self.valid_until = 0.0
        #: The lease has ended, and it is not known yet whose sessions are ours still.
        self._lapsed = False
        #: Where clients come; the real port once it is bound.
        self.endpoint = config.bind
        #: Whether clients are answered yet.
        self.serving = False
        self._socket: zmq.Socket[bytes] | None = None
        self.sessions = SessionTable(self, pool)
        self.attachments = Attachments(self)
        self.relay = Relay(self, self._context)
        self.kept = KeptMemory(config.state_dir)
        self._orphans = Orphans(self)

    # -- for the parts -------------------------------------------------------------------------

    def watch(self, source: Any, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever ``source`` (socket or descriptor) is readable."""
        self._poller.register(source, zmq.POLLIN)
        self._handlers[source] = handler

    def unwatch(self, source: Any) -> None:
        """Forget a source."""
        if self._handlers.pop(source, None) is not None:
            self._poller.unregister(source)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` once, ``seconds`` from now."""
        self._timers.append((time.monotonic() + seconds, call))

    def send(self, peer: bytes, frames: list[Any]) -> None:
        """Send to a client without blocking; what cannot be sent is its loss to ask again."""
        try:
            self.send_now(peer, frames)
        except zmq.ZMQError:
            log.debug("a peer is gone", extra={"action": "peer_gone"})

    def send_now(self, peer: bytes, frames: list[Any]) -> None:
        """Send to a client; raise `zmq.ZMQError` if its queue is full or it is gone."""
        if self._socket is not None:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)

    def refuse(self, peer: bytes, error: OutlastError, retry_after: float = 0.0) -> None:
        """Send a typed refusal."""
        message = wire.pack_message(
            Kind.REFUSED,
            error=error.code,
            retry_after=retry_after,
            message=str(error)[:1000],
        )
        self.send(peer, [message])

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down."""
        return self.drain is not None

    def finish(self, code: int) -> None:
        """End the loop with an exit code."""
        self._exit_code = code

    # -- the loop ------------------------------------------------------------------------------

    def prepare(self, patience: float) -> None:
        """Do what can be done while another server still uses the state folder: change nothing.

        Raises
        ------
        JournalNewer
            A newer version wrote the journal.
        JournalUnavailable
            It does not answer within ``patience`` seconds.
        """
        outcomes: list[OutlastError | None] = []
        self.database.submit(_look_at, lambda _, error: outcomes.append(error), patience)
        while not outcomes:
            self._step()
        if outcomes[0] is not None:
            raise outcomes[0]

    def run(self, signal_fd: int) -> int:
        """Serve until a signal; return the exit code.

        Parameters
        ----------
        signal_fd : int
            Readable when a signal has arrived (`signal.set_wakeup_fd`).
        """
        notice.remove(self.config.state_dir)  # a server that was killed has left its own
        self.watch(signal_fd, lambda: self._on_signal(signal_fd))
        self._bind()
        self.database.submit(self._open_journal, self._registered, patience=float("inf"))
        while self._exit_code is None:
            self._step()
        self._close()
        return self._exit_code

    def _step(self) -> None:
        for source, _ in self._poller.poll(self._next_timer()):
            handler = self._handlers.get(source)
            if handler is not None:
                handler()
        now = time.monotonic()
        due = [call for at, call in self._timers if at <= now]
        self._timers = [(at, call) for at, call in self._timers if at > now]
        for call in due:
            call()

    def _next_timer(self) -> int:
        if not self._timers:
            return 1000
        soonest = min(at for at, _ in self._timers)
        return max(0, min(1000, int((soonest - time.monotonic()) * 1000) + 1))

    def _open_journal(self, store: Store) -> float:
        upgrade(store.engine)
        return self._register(store)

    def _register(self, store: Store) -> float:
        asked = time.monotonic()
        store.register_server(
            self.server_id, socket.gethostname(), self.endpoint, self.config.lease_ttl
        )
        return asked + self.config.lease_ttl

    def _registered(self, valid_until: float | None, error: OutlastError | None) -> None:
        if error is not None:
            raise error
        assert valid_until is not None
        self.valid_until = valid_until
        Succession(self).begin(self._listen)
        self.after(self.config.lease_ttl / 3, self._renew)
        self._orphans.watch()
        Leftovers(self).watch()

    def _bind(self) -> None:
        """Take the port; clients that come early wait in it."""
        router = self._context.socket(zmq.ROUTER)
        router.linger = 200  # ms, for the last refusals
        router.router_mandatory = 1
        router.maxmsgsize = MAX_MESSAGE
        router.sndhwm = 2 * QUEUE
        router.ipv6 = int("[" in self.config.bind)
        stay_in_cache(router, self.config.bind)
        try:
            router.bind(self.config.bind)
        except zmq.ZMQError as error:
            router.close(0)
            raise ConfigError(
                f"cannot listen at {self.config.bind}: {zmq.strerror(error.errno or 0)}; "
                "name another address or port with --bind"
            ) from error
        self._socket = router
        self.endpoint = bytes(router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def _listen(self) -> None:
        self.serving = True
        self.watch(self._socket, self._on_client)
        notice.post(self.config, self.endpoint)
        self.after(RETURN, self.sessions.trim)
        print(f"ready {self.endpoint}", flush=True)
        log.info("server ready", extra={"action": "ready", "endpoint": self.endpoint})

    def _close(self) -> None:
        if self._leaving:
            self.sessions.abandon()
        else:
            self.sessions.close()
        self.relay.close()
        self.kept.close()
        if self._socket is not None:
            self._socket.close()
        self._lease.close(0.0)
        self.database.close(min(2.0, self.drain.time_left) if self.drain is not None else 0.0)
        self._context.destroy(linger=200)

    # -- the lease -----------------------------------------------------------------------------

    def _renew(self) -> None:
        asked = time.monotonic()
        ttl = self.config.lease_ttl

        def renewed(tokens: dict[str, int] | None, error: OutlastError | None) -> None:
            if self.drain is not None and self.drain.finished:
                return  # the lease is being given back
            if error is not None:
                log.error("the lease was not renewed: %s", error, extra={"action": "renew_failed"})
            else:
                if tokens is not None:
                    self._lapsed = False
                    self.sessions.keep_only(tokens)
                self.valid_until = asked + ttl
                self.sessions.lease_renewed(self.valid_until)
            if self._exit_code is None:
                self.after(ttl / (3 if error is None else 10), self._renew)

        self._lease.submit(self._extend, renewed, patience=ttl / 10)

    def _extend(self, store: Store) -> dict[str, int] | None:
        """Extend the lease (in the lease's thread), or take a new one if it has ended.

        Returns
        -------
        dict or None
            After a new one: the tokens of the sessions that nobody has taken over meanwhile,
            whose workers may go on. None: it had not ended.
        """
        self._lapsed = self._lapsed or not store.renew_lease(self.server_id, self.config.lease_ttl)
        if not self._lapsed:
            return None
        log.error("the lease has ended, a new one is taken", extra={"action": "lease_lapsed"})
        self._register(store)
        return {row.id: row.token for row in store.sessions(self.server_id)}

    # -- clients -------------------------------------------------------------------------------

    def _on_client(self) -> None:
        assert self._socket is not None
        for _ in range(BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames[0], frames[1:])

    def _on_frames(self, peer: bytes, frames: list[bytes]) -> None:
        if self.relay.forward(peer, frames):
            return
        version = wire.version_of(frames)
        if version is not None and version != PROTOCOL_VERSION:
            self.refuse(peer, self.attachments.version_error(f"protocol {version}"))
            return
        try:
            message = wire.parse_message(frames)
        except ProtocolError as error:
            log.debug("garbage from a peer: %s", error, extra={"action": "garbage"})
            self.refuse(peer, error)
            return
        if message.kind is Kind.PING:
            self.send(peer, [wire.pack_pong(0, message["stamp"])])
        elif message.kind is not Kind.HELLO:
            self.refuse(peer, ProtocolError(f"{message.kind.name} before HELLO"))
        elif message["stream_format"] not in READABLE_FORMATS:
            spoken = f"call streams of format {message['stream_format']}"
            self.refuse(peer, self.attachments.version_error(spoken, message["build"]))
        elif self.draining:
            self.refuse(peer, self.attachments.draining_error(), retry_after=0.2)
        else:
            self.attachments.hello(peer, message)

    # -- signals -------------------------------------------------------------------------------

    def _on_signal(self, signal_fd: int) -> None:
        try:
            numbers = os.read(signal_fd, 64)
        except BlockingIOError:
            return
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._terminate()
            elif number == signal.SIGUSR2 and self.drain is None:
                # No haste for one that is under way: its sender may not have known of it.
                self._terminate(hand_over=True)
            elif number == signal.SIGUSR1 and self.drain is None:
                # The lease stays: the workers go on under it, and the next gateway has them.
                log.info("leaving the workers to the next server", extra={"action": "leaving"})
                self._leaving = True
                notice.remove(self.config.state_dir)
                self.finish(0)

    def _terminate(self, hand_over: bool = False) -> None:
        if not self.serving and not self.sessions.running():
            # Still starting: nothing is served, nothing is to be saved.
            self.database.abandon()
            self._lease.abandon()
            self.finish(0)
        elif self.drain is None:
            log.info("drain started", extra={"action": "drain_started"})
            notice.remove(self.config.state_dir)
            self.drain = Drain(self, hand_over)
            self.drain.begin()
        else:
            self.drain.hasten()


def _look_at(store: Store) -> None:
    """Find out whether a journal can be used, and have all loaded that its use takes."""
    current_revision(store.engine)
    store.servers()
