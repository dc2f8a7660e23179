"""What the benchmarks share: a server of their own, JSON lines, medians."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: An empty kernel of one 64-bit parameter.
EMPTY_KERNEL = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry empty(.param .u64 pointer)
{
    ret;
}
"""


def report(name: str, value: float, unit: str, **extra: object) -> None:
    """Print one result."""
    print(json.dumps({"benchmark": name, "value": round(value, 3), "unit": unit, **extra}))
    sys.stdout.flush()


def median_us(call: Callable[[], object], repeat: int) -> float:
    """Return the median duration of a call in microseconds."""
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples) * 1e6


def longest_call(call: Callable[[], object], change: Callable[[], object]) -> tuple[float, float]:
    """Call all the while something changes; return when the longest call began and ended."""
    changing = threading.Thread(target=change)
    longest = 0.0, 0.0
    changing.start()
    last = False
    while not last:
        last = not changing.is_alive()  # one more: the change may have ended before its effect
        began = time.perf_counter()
        call()
        longest = max(longest, (began, time.perf_counter()), key=lambda span: span[1] - span[0])
    return longest


class Server:
    """``outlast serve`` in a folder of its own."""

    def __init__(self, state: Path, *arguments: str, device: str = "emulated") -> None:
        self.state = state
        self.device = device
        self.arguments = arguments
        self.endpoint = "tcp://127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it on the same port as before and wait until it is ready."""
        self.process = self._spawn()
        self._await_ready()

    def replace(self) -> tuple[float, float]:
        """Let another server take its place; return when the old one had ended, and when all was.

        Raises
        ------
        RuntimeError
            The old one could not hand its sessions over.
        """
        old, self.process = self.process, self._spawn("--take-over")
        assert old is not None
        code = old.wait()
        gone = time.perf_counter()
        if old.stdout is not None:
            old.stdout.close()
        self._await_ready()
        if code:
            raise RuntimeError(f"the server that was replaced ended with exit code {code}")
        return gone, time.perf_counter()

    def _spawn(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "outlast", "serve", "--device", self.device]
        command += ["--bind", self.endpoint, "--state", str(self.state), "--log-level", "error"]
        return subprocess.Popen(
            [*command, *self.arguments, *more], stdout=subprocess.PIPE, text=True
        )

    def _await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().split()[1]

    def children(self) -> list[int]:
        """Return the pids of its workers."""
        assert self.process is not None
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self, deadline: float = 60.0, number: int = signal.SIGTERM) -> int:
        """Send a signal that ends it and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(deadline)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def report_replacement(server: Server, call: Callable[[], object], name: str) -> None:
    """Report how long a program stands still while another server takes a server's place.

    Parameters
    ----------
    server : Server
        It is replaced.
    call : callable
        What the program does all the time.
    name : str
        What it holds, for the figures' names.
    """
    marks: list[float] = []
    started = time.perf_counter()
    began, ended = longest_call(call, lambda: marks.extend(server.replace()))
    gone, ready = marks
    for what, span in (
        ("prepared", began - started),
        ("old server gone", gone - began),
        ("new server ready", ready - began),
        ("stall", ended - began),
    ):
        report(f"upgrade with --take-over, {name}: {what}", span, "s", by="outlast")


@contextlib.contextmanager
def session(*arguments: str, device: str = "emulated") -> Iterator[Server]:
    """Run a server and point this process's client at it."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "state", *arguments, device=device)
        server.start()
        os.environ["LUPINE_SERVER"] = server.endpoint
        os.environ["LUPINE_STATE_DIR"] = str(Path(folder) / "client")
        os.environ.pop("LUPINE_SESSION", None)
        try:
            yield server
        finally:
            server.stop()
