"""Processes that the demo starts, finds and ends.

Every process of a server carries a mark in its environment, and so do its children, whatever
group or session they move to: that is how none escapes `kill_marked`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

MARK = "OUTLAST_DEMO_MARK"
PROC = Path("/proc")
SERVE = (sys.executable, "-m", "outlast", "serve")

START_DEADLINE = 30.0  # seconds
KILL_DEADLINE = 10.0  # seconds
POLL = 0.02  # seconds


class DemoError(RuntimeError):
    """Something did not go as the demo claims."""


def marked(mark: str) -> list[int]:
    """Return the ids of all live processes that carry ``mark``, oldest first."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in PROC.glob("[0-9]*"):
        # Processes end while we look; those of other users are not ours.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted(found)


def kill_marked(mark: str, deadline: float = KILL_DEADLINE) -> list[int]:
    """Send SIGKILL to all processes that carry ``mark`` until none is left; return their ids.

    Raises
    ------
    DemoError
        If one is still there after ``deadline`` seconds.
    """
    killed: set[int] = set()
    end = time.monotonic() + deadline
    while pids := marked(mark):
        if time.monotonic() > end:
            raise DemoError(f"processes {pids} survived SIGKILL for {deadline:.0f} s")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(POLL)
    return sorted(killed)


class ServerProcess:
    """`outlast serve` in a process group of its own, restarted at one endpoint.

    Parameters
    ----------
    state
        The server's state directory.
    log
        File that gets what the server says.
    device
        Value of ``--device``.
    command
        What to run in place of ``outlast serve``.
    """

    def __init__(
        self, state: Path, log: Path, device: str = "auto", command: Sequence[str] = SERVE
    ) -> None:
        #: Where it listens; with port 0 until it was started once.
        self.endpoint = "tcp://127.0.0.1:0"
        self._options = ["--state", str(state), "--device", device]
        self._log = log
        self._command = list(command)
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Id of the gateway process."""
        return self._running().pid

    def start(self, deadline: float = START_DEADLINE) -> None:
        """Start the server and wait until it accepts.

        Raises
        ------
        DemoError
            If it ends or says nothing for ``deadline`` seconds.
        """
        command = [*self._command, "--bind", self.endpoint, *self._options]
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self._log.open("a") as log:
            process = self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, MARK: self._mark},
                start_new_session=True,
            )
        threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
        try:
            line = lines.get(timeout=deadline)
        except queue.Empty:
            raise DemoError(f"the server was not ready within {deadline:.0f} s") from None
        if not line:
            raise DemoError("the server ended before it was ready")
        word, _, endpoint = line.strip().partition(" ")
        if word != "ready" or not endpoint:
            raise DemoError(f"the server said {line.strip()!r} where it should be ready")
        self.endpoint = endpoint

    def terminate(self, deadline: float) -> int:
        """Send SIGTERM to the gateway and return its exit code.

        Raises
        ------
        DemoError
            If it does not end within ``deadline`` seconds, or leaves a process behind.
        """
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the server did not end within {deadline:.0f} s") from None
        if left := marked(self._mark):
            raise DemoError(f"the server ended but left processes {left} behind")
        return code

    def kill(self) -> list[int]:
        """Kill the gateway and all workers at once with SIGKILL; return their ids."""
        process = self._running()
        before = marked(self._mark)
        if process.poll() is None:
            # One sweep over the group first: no supervisor lives to replace a dead worker.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        killed = kill_marked(self._mark)
        process.wait(KILL_DEADLINE)
        return sorted({*before, *killed})

    def close(self) -> None:
        """End whatever is left of the server, the hard way."""
        if self._process is not None:
            self.kill()
        else:
            kill_marked(self._mark)  # what an interrupted start may have left

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise DemoError("the server was not started")
        return self._process


def _forward(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Move a process's output into a queue; an empty line marks the end."""
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                lines.put(line)
    lines.put("")
