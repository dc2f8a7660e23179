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
        command = [sys.executable, "-m", "outlast", "serve", "--device", self.device]
        command += ["--bind", self.endpoint, "--state", str(self.state), "--log-level", "error"]
        self.process = subprocess.Popen(
            [*command, *self.arguments], stdout=subprocess.PIPE, text=True
        )
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
