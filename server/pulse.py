"""The worker's second thread: reads the channel, and waits for another gateway at its end."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from typing import Protocol

from outlast.server.channel import Channel, Json
from outlast.server.datalink import DataLink
from outlast.server.doorstep import Doorstep, introduce
from outlast.server.executor import Executor
from outlast.session.host import HostSession

log = logging.getLogger("outlast.server.worker")

#: How often it looks whether the main thread is in a long call.
PULSE = 0.25  # seconds


class Employee(Protocol):
    """A worker, as its pulse knows it."""

    #: When the lease ends, on the monotonic clock.
    valid_until: float

    def may_act(self) -> bool:
        """Return whether that is still far enough away."""

    def deliver(self, message: Json) -> None:
        """Take a message of the gateway, in the pulse's thread."""

    def introduction(self) -> Json | None:
        """Return what a new gateway has to know; None if there is nothing to take over."""


class Pulse:
    """Never calls the device, so it always answers: for the main thread if that is in a call.

    A gateway that dies takes nothing with it: the worker goes on for as long as the lease
    allows, and a new gateway of the same state folder finds it at its doorstep.

    Parameters
    ----------
    worker : Employee
        Whom it speaks for.
    channel, link, host, executor
        The worker's.
    door : Doorstep
        Where a new gateway comes.
    page : int
        Descriptor of the page that gateway and worker share.
    """

    def __init__(
        self,
        worker: Employee,
        channel: Channel,
        link: DataLink,
        host: HostSession,
        executor: Executor,
        door: Doorstep,
        page: int,
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._link = link
        self._host = host
        self._executor = executor
        self._door = door
        self._page = page

    def run(self) -> None:
        """Beat until the process ends."""
        while True:
            if self._channel.ready(PULSE):
                message = self._channel.receive()
                if message is None:
                    self._await_successor()
                    message = {"kind": "succeeded"}
                elif message["kind"] == "begone":
                    # At once, whatever the main thread is in.
                    self._door.close()
                    os._exit(0)
                self._worker.deliver(message)
            self._stand_in()

    def _stand_in(self) -> None:
        if not self._worker.may_act():
            return  # the client may have been given to another server: it must notice
        in_call = self._executor.in_call
        busy = (in_call[0], time.monotonic() - in_call[1]) if in_call else (0, 0.0)
        self._link.stand_in(self._host.generation, *busy)

    def _await_successor(self) -> None:
        """Return when another gateway has come; end the process when the lease has ended."""
        log.warning("the gateway is gone; waiting for another", extra={"action": "orphaned"})
        while (left := self._worker.valid_until - time.monotonic()) > 0:
            connection = self._door.accept(min(left, PULSE))
            self._stand_in()
            if connection is None:
                continue
            introduction = self._worker.introduction()
            if introduction is None:
                os._exit(0)
            with suppress(OSError):
                connection.settimeout(PULSE)
                introduce(connection, introduction, self._page)
                connection.settimeout(None)
                self._channel.replace(connection.detach())
                return
            connection.close()
        self._door.close()
        # Others may act now, and we may not.
        os._exit(0)
