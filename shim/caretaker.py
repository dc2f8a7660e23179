"""The link's own thread: flushes what nobody waits for, keeps heartbeats, reconnects."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from outlast.errors import (
    LinkClosed,
    LinkTimeout,
    OutlastError,
    ServerDraining,
    ServerUnreachable,
)
from outlast.session import retry
from outlast.session.client import ClientSession
from outlast.session.phase import Phase
from outlast.shim.handshake import Handshake
from outlast.shim.pump import Pump
from outlast.shim.settings import LinkSettings
from outlast.shim.standstill import Standstill
from outlast.shim.transport import Transport

log = logging.getLogger("outlast.link")

#: How soon calls that nobody waits for are sent.
FLUSH_INTERVAL = 0.001  # seconds
#: How often the thread looks when nothing happens.
IDLE_INTERVAL = 0.05  # seconds
#: Ticks without calls after which it goes from the first to the second.
IDLE_TICKS = 20


class Caretaker:
    """Attaches a session, and looks after it while the program does other things."""

    def __init__(
        self,
        session: ClientSession,
        settings: LinkSettings,
        mutex: threading.Lock,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        self.stop = threading.Event()
        self.devices: list[dict[str, Any]] = []
        self.reconnects = 0
        #: Seconds each lost connection kept the session from its server.
        self.stalls: list[float] = []
        #: The thread is in its long sleep: a first call must rouse it.
        self.asleep = False
        self._session = session
        self._settings = settings
        self._mutex = mutex
        #: Called while the program makes no calls.
        self._tidy = tidy
        self._tick = threading.Event()
        self._idle_ticks = 0
        self._attached_at = 0.0
        self._standstill = Standstill(settings.heartbeat_timeout)
        #: What the server said last to an attempt that it turned down.
        self._refused: OutlastError | None = None
        #: How the last attempt ended for which there was time.
        self._unreached: ServerUnreachable | None = None
        self._thread: threading.Thread | None = None
        self.pump = Pump(session, settings, mutex, self.rouse)

    def start(self) -> None:
        """Begin to look after a session that is attached."""
        self._thread = threading.Thread(target=self._run, name="outlast-link", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end after `stop` was set."""
        self.rouse()
        if self._thread is not None:
            self._thread.join(timeout)

    def rouse(self) -> None:
        """End the thread's sleep, and let it stay awake for a while.

        A program that calls and waits by turns leaves it nothing to flush at its ticks; if it
        fell asleep over that, every call would have to wake a thread.
        """
        self.asleep = False
        self._idle_ticks = 0
        self._tick.set()

    def _run(self) -> None:
        try:
            self._look_after()
        finally:
            # Nobody else brings a connection back: without this thread no call may wait.
            self._end(LinkClosed("the thread that keeps the link has ended"))

    def _end(self, error: OutlastError) -> None:
        with self._mutex:
            self._session.close(error)
            self.pump.changed.notify_all()

    def _look_after(self) -> None:
        while not self.stop.is_set():
            with self._mutex:
                detached = self._session.phase is Phase.DETACHED and self.pump.transport is None
                if not detached:
                    self._on_tick()
                    self.asleep = self._idle_ticks >= IDLE_TICKS
            if detached:
                self._come_back()
            elif self.asleep:
                self._tidy()
            self._tick.wait(IDLE_INTERVAL if self.asleep else FLUSH_INTERVAL)
            self._tick.clear()

    def _on_tick(self) -> None:
        session, transport = self._session, self.pump.transport
        if session.open.calls or (transport is not None and transport.has_unsent):
            self._idle_ticks = 0
            session.seal()
        else:
            self._idle_ticks += 1
        if self.pump.polling:
            if session.has_unsent:
                self.pump.wake()
        elif transport is not None:
            self.pump.pump(transport, 0.0)

    def _come_back(self) -> None:
        try:
            self._pause()
            self.reattach(self._settings.reconnect_timeout)
        except retry.Interrupted:
            return
        except OutlastError as error:
            self._end(error)
            return
        stall = time.monotonic() - self.pump.lost_at
        self.reconnects += 1
        self.stalls.append(stall)
        log.info(
            "link back after %.3f s",
            stall,
            extra={"action": "link_back", "session": self._session.session_id},
        )

    def _pause(self) -> None:
        """Wait, if the last connections have led nowhere.

        Raises
        ------
        LinkTimeout
            They have for too long.
        Interrupted
            The link is being closed.
        """
        still, now = self._standstill, time.monotonic()
        pause = still.lost(self._session.progress, self._attached_at, now)
        lasted = still.lasted(now)
        if lasted > self._settings.reconnect_timeout:
            raise LinkTimeout(
                f"session {self._session.session_id!r} does not get on: {still.losses} "
                f"connections in {lasted:.1f} s were lost at the same call, the last one so: "
                f"{self.pump.lost_because}",
                attempts=still.losses,
                elapsed=round(lasted, 1),
            )
        if pause and self.stop.wait(pause):
            raise retry.Interrupted

    def reattach(self, timeout: float) -> None:
        """Attach within ``timeout`` seconds; a draining server restarts that time once."""
        try:
            self._attempts(timeout)
        except ServerDraining:
            self._attempts(timeout)

    def _attempts(self, timeout: float) -> None:
        begin = time.monotonic()
        handshake = Handshake(
            self._settings.server,
            self._session,
            self._mutex,
            self._settings.relay,
            self._settings.heartbeat_timeout,
            self.stop,
        )
        attempts, server = 0, self._settings.server
        self._refused = self._unreached = None
        try:
            expected = self.pump.said_goodbye
            for attempt in retry.reconnecting(timeout, self.stop, expected=expected):
                with attempt:
                    attempts += 1
                    transport = self._attempt(handshake, begin + timeout)
        except (ServerUnreachable, TimeoutError) as error:
            elapsed = round(time.monotonic() - begin, 1)
            tried = f"{attempts} attempts in {elapsed:.1f} s"
            if isinstance(error, LinkTimeout) and self._refused is not None:
                text = f"the session server at {server} refuses, {tried}: {self._refused}"
            else:
                reason = self._unreached if isinstance(error, LinkTimeout) else None
                text = (
                    f"no session server at {server}: {tried}, the last one ended so: "
                    f"{unresolved(server) or reason or error}. Is `outlast serve` running there? "
                    "LUPINE_SERVER names it"
                )
            raise ServerUnreachable(
                text, endpoint=server, attempts=attempts, elapsed=elapsed
            ) from error
        self.devices = handshake.devices
        with self._mutex:
            self._attached_at = time.monotonic()
            self.pump.install(transport)

    def _attempt(self, handshake: Handshake, deadline: float) -> Transport:
        """Attach once; the server's reason is kept, as the time may end in a later attempt."""
        try:
            return handshake.attach(deadline)
        except ServerUnreachable as error:
            self._unreached = error
            raise
        except LinkTimeout:
            raise
        except OutlastError as error:
            self._refused = error
            raise


def unresolved(endpoint: str) -> str:
    """Return why the host of ``endpoint`` has no address, empty if it has one."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"the host {host!r} is not known ({error.strerror})"
    return ""
