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


#: When a call began and when it ended.
Span = tuple[float, float]


def calls_during(call: Callable[[], object], change: Callable[[], object]) -> list[Span]:
    """Call all the while something changes, and once more; return when each call was."""
    changing = threading.Thread(target=change)
    spans = []
    changing.start()
    last = False
    while not last:
        last = not changing.is_alive()
        began = time.perf_counter()
        call()
        spans.append((began, time.perf_counter()))
    return spans


def longest(spans: list[Span]) -> Span:
    """Return the call that took longest."""
    return max(spans, key=lambda span: span[1] - span[0])


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
    spans = calls_during(call, lambda: marks.extend(server.replace()))
    gone, ready = marks
    # The call that waited for the new server; on a busy machine others may take long, too.
    began, ended = next(span for span in spans if span[1] > gone)
    first, last = longest(spans)
    for what, span in (
        ("prepared", began - started),
        ("old server gone", gone - began),
        ("new server ready", ready - began),
        ("session there", ended - began),
        ("stall", last - first),
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
