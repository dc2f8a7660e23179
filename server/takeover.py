"""``outlast serve --take-over``: a server takes the place of the one that uses its state folder.

It makes everything ready that needs no lock: what it loads, the journal's connection, the keeper,
workers with their devices. Only then it tells the running server to make way, waits until that
has ended, and serves. What goes wrong before leaves the running server as it was.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from typing import TYPE_CHECKING

from outlast import __version__
from outlast.config import ServeConfig
from outlast.errors import KeeperError, TakeOverFailed
from outlast.server import notice
from outlast.server.doorstep import DOOR_SUFFIX
from outlast.server.incumbent import Incumbent
from outlast.server.locks import TAKE_OVER, LifetimeLock
from outlast.server.notice import Notice

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway
    from outlast.server.pool import WorkerPool

log = logging.getLogger(__name__)

#: How long journal, keeper and devices may take to be ready.
PATIENCE = 60.0  # seconds
#: How long it is waited for that the running server says that it serves, or is gone.
SETTLING = 2.0  # seconds
#: How long a server may take to end beyond its grace time.
MARGIN = 10.0  # seconds
INSTEAD = "stop that server with SIGTERM, which saves its sessions, and start this one"


class TakeOver:
    """One server's way to the place of another.

    Parameters
    ----------
    config : ServeConfig
        Settings of the server that comes.
    lock : LifetimeLock
        Of the state folder.

    Raises
    ------
    TakeOverFailed
        Another server is about to do so, or the one that runs cannot be replaced by this one.
    """

    def __init__(self, config: ServeConfig, lock: LifetimeLock) -> None:
        self._lock = lock
        self._turn = LifetimeLock(config.state_dir / TAKE_OVER)
        #: Settings to serve with: the address is the running server's own.
        self.config = config
        #: Workers to have ready.
        self.workers = 1
        self._gateway_only = config.take_over == "gateway"
        self._grace = 0.0
        try:
            self._incumbent = self._find()
        except TakeOverFailed:
            self._turn.release()
            raise

    def _find(self) -> Incumbent | None:
        """Return the server to follow; None where nobody runs, and the lock is ours then."""
        if not self._turn.try_acquire():
            raise TakeOverFailed(
                f"process {self._turn.owner()} is about to take over the state folder "
                f"{self.config.state_dir} already"
            )
        deadline = time.monotonic() + SETTLING
        while not self._lock.try_acquire():
            try:
                incumbent, running = self._look()
            except TakeOverFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            self._follow(incumbent, running)
            return incumbent
        return None

    def _look(self) -> tuple[Incumbent, Notice]:
        """Return the server that runs, and what it says of itself."""
        incumbent = Incumbent(self._lock)
        running = notice.read(self.config.state_dir)
        if running is None or running.pid != incumbent.pid:
            incumbent.close()
            raise TakeOverFailed(
                f"server process {incumbent.pid} does not say that it serves: it starts or ends "
                f"just now, or is of a version that cannot be replaced so; try again, or {INSTEAD}"
            )
        return incumbent, running

    def _follow(self, incumbent: Incumbent, running: Notice) -> None:
        """Take in how a server runs, if this one can go on for it."""
        bind = address_of(self.config, running)
        if lack := obstacles(self.config, running):
            incumbent.close()
            raise TakeOverFailed(
                f"server process {incumbent.pid} cannot be replaced by this one: "
                f"{'; '.join(lack)}: choose the same, or {INSTEAD}"
            )
        self.config = dataclasses.replace(self.config, bind=bind)
        self._grace = running.grace
        if not self._gateway_only:
            folder = self.config.state_dir / "workers"
            self.workers = max(1, len(list(folder.glob(f"*{DOOR_SUFFIX}"))))

    def prepare(self, gateway: Gateway, pool: WorkerPool) -> None:
        """Make ready what needs no lock.

        Raises
        ------
        OutlastError
            Something cannot be; the running server goes on.
        """
        if self._incumbent is None:
            return
        gateway.prepare(PATIENCE)
        if self._gateway_only:
            return
        try:
            gateway.kept.start(self.config.keep_for)
        except KeeperError as error:
            raise TakeOverFailed(f"memory cannot be handed over: {error}; {INSTEAD}") from error
        pool.await_warm(PATIENCE)
        if lack := _unshared(self.config.device):
            raise TakeOverFailed(f"memory cannot be handed over: {lack}; {INSTEAD}")

    def take(self) -> None:
        """Have the running server make way, and take the lock.

        Raises
        ------
        TakeOverFailed
            It cannot be told to, it does not end, or somebody else was quicker.
        """
        if self._incumbent is not None:
            self._replace(self._incumbent)
        self._turn.release()

    def _replace(self, incumbent: Incumbent) -> None:
        log.info("server makes way", extra={"action": "take_over", "pid": incumbent.pid})
        began = time.monotonic()
        incumbent.tell(signal.SIGUSR1 if self._gateway_only else signal.SIGUSR2)
        limit = self._grace + MARGIN
        if not incumbent.wait(limit):
            raise TakeOverFailed(
                f"server process {incumbent.pid} was told to make way and has not ended within "
                f"{limit:g} s; it still may: start a server as usual once it has"
            )
        incumbent.close()
        if not self._lock.acquire():
            raise TakeOverFailed(
                f"server process {incumbent.pid} has made way, but process {self._lock.owner()} "
                "uses the state folder now and will have its sessions"
            )
        lasted = round(time.monotonic() - began, 3)
        log.info("server has made way", extra={"action": "taken_over", "seconds": lasted})


def address_of(config: ServeConfig, running: Notice) -> str:
    """Return where the running server's clients will come; empty if these settings say no to it."""
    host, _, port = config.bind.rpartition(":")
    same_host = host in (running.bind.rpartition(":")[0], running.endpoint.rpartition(":")[0])
    if port == "0" and same_host:
        return running.endpoint
    return config.bind if config.bind in (running.bind, running.endpoint) else ""


def obstacles(config: ServeConfig, running: Notice) -> list[str]:
    """Return what keeps a server of these settings from going on for the running one."""
    own = notice.of(config, config.bind)
    found = [
        f"its {name} is {getattr(running, name)}, not {getattr(own, name)}"
        for name in ("device", "provider", "database")
        if getattr(running, name) != getattr(own, name)
    ]
    if not address_of(config, running):
        found.append(f"its clients come to {running.endpoint}, not to {config.bind}")
    if config.take_over == "gateway" and running.version != __version__:
        found.append(f"its workers are of version {running.version} and could not stay")
    return found


def _unshared(device: str) -> str:
    """Return why the devices' memory cannot be shared between processes; nothing if it can."""
    from outlast.server.doctor.devices import examined

    found = examined(device)
    reasons = [found.get("error", "")]
    for entry in found.get("devices", ()):
        reasons += [entry.get("error", ""), entry["shared"]]
    return next(filter(None, reasons), "")
