"""A client program in a process of its own, to be watched, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

DEADLINE = 20.0  # seconds

#: What every program begins with.
PRELUDE = """
import ctypes, os, sys, threading, time
import numpy as np
from outlast.shim import driver as cuda

def check(answer):
    result, *values = answer
    assert int(result) == 0, f"CUDA error {int(result)}: {cuda.last_error()}"
    return values[0] if values else None

def say(*words):
    print(*words, flush=True)

def begin():
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))

def read(address, count=1):
    out = np.zeros(count, np.int32)
    check(cuda.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
    return out
"""


class ClientProgram:
    """A Python program that has ``cuda``, ``check``, ``begin``, ``read`` and ``say``.

    Parameters
    ----------
    code : str
        Its text, behind `PRELUDE`.
    server : str
        Endpoint of the server.
    state : Path
        Folder of its resume tokens.
    session : str
        Name of its session; empty: one of its own.
    environment : str
        More variables.
    """

    def __init__(
        self, code: str, server: str, state: Path, session: str = "", **environment: str
    ) -> None:
        variables = {"LUPINE_SERVER": server, "LUPINE_STATE_DIR": str(state), **environment}
        if session:
            variables["LUPINE_SESSION"] = session
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> ClientProgram:
        return self

    def __exit__(self, *exc: object) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was told to a dead program
                pipe.close()

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return "".join(self._errors)

    def expect(self, timeout: float = DEADLINE) -> str:
        """Return the next line that it says."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"it said nothing for {timeout} s\n{self.errors}") from None
        assert line, f"it ended (code {self.process.poll()})\n{self.errors}"
        return line.rstrip("\n")

    def tell(self, line: str = "") -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, timeout: float = DEADLINE) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(DEADLINE)
        return code

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)
