"""Worker processes that have no session yet: one that is ready saves a session the wait for it."""

from __future__ import annotations

import logging
import time

from outlast.errors import RestoreFailed
from outlast.server.departures import Process, reap
from outlast.server.workers import WorkerProcess

log = logging.getLogger(__name__)

#: Workers that are kept ready at most; each has a context on the device.
MOST = 8


class WorkerPool:
    """Keeps idle workers ready.

    Parameters
    ----------
    device : str
        Kind of device they are to have ready.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._spares: list[WorkerProcess] = []

    def warm(self, count: int = 1) -> None:
        """Start spare workers until there are so many, or as many as there may be."""
        try:
            while len(self._spares) < min(count, MOST):
                self._spares.append(WorkerProcess.spawn(self._device))
        except RestoreFailed as error:
            log.warning("no spare worker: %s", error, extra={"action": "no_spare"})

    def await_warm(self, timeout: float) -> None:
        """Wait until every spare worker has its device ready.

        Raises
        ------
        OutlastError
            There is none, or one of them has no device or takes too long.
        """
        deadline = time.monotonic() + timeout
        if not self._spares:
            raise RestoreFailed("no worker process can be started")
        for worker in self._spares:
            while not worker.warm:
                if not worker.channel.ready(max(0.0, deadline - time.monotonic())):
                    raise RestoreFailed(f"a worker has no device ready after {timeout:g} s")
                if not worker.receive():
                    code = reap(worker.process)
                    raise RestoreFailed(f"a worker ended with exit code {code} at its start")
            if worker.lack is not None:
                raise worker.lack

    def take(self) -> WorkerProcess:
        """Return a worker that has no session yet."""
        while self._spares:
            worker = self._spares.pop(0)
            if worker.process.poll() is None:
                return worker
            worker.close()
        return WorkerProcess.spawn(self._device)

    def dismiss(self, left: int = 0) -> list[Process]:
        """Have all spare workers but so many end; return them, to be waited for."""
        leaving = [worker.dismiss() for worker in self._spares[left:]]
        del self._spares[left:]
        return leaving

    def close(self) -> None:
        """End the spare workers."""
        for process in self.dismiss():
            reap(process)
