"""Processes on their way out: waited for beside everything else, killed when it takes them long."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.server.foreign import ForeignProcess

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

#: How long a process may take to end by itself.
PATIENCE = 2.0  # seconds

Process = subprocess.Popen[bytes] | ForeignProcess


def reap(process: Process, timeout: float = PATIENCE) -> int:
    """Wait for a process to end, killing it if it does not; return its code."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Departures:
    """Waits for processes in the gateway's loop, which goes on meanwhile."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: Descriptor that becomes readable with the process's end, and who is told of it.
        self._leaving: dict[Process, tuple[int, Callable[[int], None]]] = {}

    def await_end(self, process: Process, then: Callable[[int], None] = lambda code: None) -> None:
        """Call ``then(code)`` once a process has ended; at once if it has already.

        A process is waited for once: another ``then`` is not called.
        """
        if process in self._leaving:
            return
        code = process.poll()
        if code is not None:
            then(code)
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # no descriptor to be had
            then(reap(process))
            return
        self._leaving[process] = descriptor, then
        self._gateway.watch(descriptor, lambda: self._look(process))
        self._gateway.after(PATIENCE, lambda: self._hasten(process))

    def wait(self, patience: float) -> None:
        """Block until all have ended; those are killed that take longer than ``patience``."""
        deadline = time.monotonic() + patience
        for process in list(self._leaving):
            reap(process, max(0.0, deadline - time.monotonic()))
            self._look(process)

    def _hasten(self, process: Process) -> None:
        if process in self._leaving:
            process.kill()

    def _look(self, process: Process) -> None:
        code = process.poll() if process in self._leaving else None
        if code is not None:
            descriptor, then = self._leaving.pop(process)
            self._gateway.unwatch(descriptor)
            os.close(descriptor)
            then(code)
