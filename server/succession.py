"""Taking over the workers of a gateway that died: their sessions go on as if nothing were.

A worker outlives its gateway for as long as the lease allows and waits at its doorstep. The
new gateway of the same state folder has the old one's lock, so that one is dead; and the
session's row still names this server and the worker's own token, so nobody else has claimed
it since. Then the worker may go on under that token, and its client need not know.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast import __version__
from outlast.errors import OutlastError, SessionNotFound
from outlast.server.channel import Channel, Json
from outlast.server.doorstep import DOOR_SUFFIX, hear
from outlast.server.foreign import ForeignProcess
from outlast.server.unix_sockets import connect, peer_of
from outlast.server.workers import WorkerProcess
from outlast.session.rows import SessionRow, SessionState
from outlast.session.store import Store

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

log = logging.getLogger(__name__)

#: How long all workers together may take to introduce themselves: they do it at once.
PATIENCE = 0.4  # seconds


@dataclass(slots=True)
class Survivor:
    """A worker that has introduced itself."""

    worker: WorkerProcess
    introduction: Json

    @property
    def session(self) -> str:
        """Its session."""
        return str(self.introduction["session"])


class Succession:
    """Finds the workers that are left and takes over those that may go on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def begin(self, then: Callable[[], None]) -> None:
        """Take over what there is, and call ``then``."""
        survivors = self._find()
        if not survivors:
            then()
            return

        def rows(store: Store) -> dict[str, SessionRow]:
            found = {}
            for survivor in survivors:
                with suppress(SessionNotFound):
                    found[survivor.session] = store.session(survivor.session)
            return found

        def read(found: dict[str, SessionRow] | None, error: OutlastError | None) -> None:
            if error is not None:
                log.error("no worker is taken over: %s", error, extra={"action": "succession"})
            for survivor in survivors:
                self._decide(survivor, (found or {}).get(survivor.session))
            then()

        self._gateway.database.submit(rows, read)

    def _find(self) -> list[Survivor]:
        folder = self._gateway.config.state_dir / "workers"
        deadline = time.monotonic() + PATIENCE
        waiting = []
        for path in sorted(folder.glob(f"*{DOOR_SUFFIX}")):
            try:
                waiting.append(connect(path, socket.SOCK_STREAM, PATIENCE))
            except OSError:
                # What a killed worker left.
                with suppress(OSError):
                    path.unlink()
        found = [self._meet(connection, deadline) for connection in waiting]
        return [survivor for survivor in found if survivor is not None]

    def _meet(self, connection: socket.socket, deadline: float) -> Survivor | None:
        """Hear who is there; one that does not say it in time is replaced when it is needed."""
        with ExitStack() as undo:
            undo.callback(connection.close)
            try:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                pid, _ = peer_of(connection)
                process = ForeignProcess(pid)
                introduction, page_fd = hear(connection)
                undo.callback(os.close, page_fd)
                page = mmap.mmap(page_fd, mmap.PAGESIZE)
            except OSError as error:
                log.warning(
                    "a worker does not say who it is: %s", error, extra={"action": "succession"}
                )
                return None
            connection.settimeout(None)
            channel = Channel(connection.detach())
            return Survivor(WorkerProcess(channel, process, page), introduction)

    def _decide(self, survivor: Survivor, row: SessionRow | None) -> None:
        said, worker = survivor.introduction, survivor.worker
        worker.succeed(survivor.session, said["endpoints"], said["devices"])
        obstacle = self._obstacle(said, row)
        if obstacle or row is None:
            log.warning(
                "worker of session %s is not taken over: %s",
                survivor.session,
                obstacle or "this journal does not know it; it goes on until its lease ends",
                extra={"action": "not_succeeded", "session": survivor.session},
            )
            if row is None:
                # A journal that is not the right one, or does not answer, is no reason to end it.
                worker.abandon()
            else:
                worker.close()
            return
        self._gateway.sessions.take_over(row, worker)
        worker.send("lease", until=self._gateway.valid_until)
        log.info(
            "worker taken over",
            extra={"action": "succeeded", "session": survivor.session, "pid": worker.pid},
        )

    def _obstacle(self, said: Json, row: SessionRow | None) -> str:
        """Return why a worker may not go on, or nothing."""
        config = self._gateway.config
        if row is None:
            return ""
        if row.owner != self._gateway.server_id or row.token != said["token"]:
            return f"server {row.owner} holds its session under token {row.token}"
        if row.state is not SessionState.ACTIVE:
            return f"its session is {row.state}"
        if said["version"] != __version__:
            return f"it is of version {said['version']}"
        if (said["device"], said["provider"]) != (config.device, config.provider):
            return "device or provider are others now"
        return ""
