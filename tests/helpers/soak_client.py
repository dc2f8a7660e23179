"""A client program of the soak in a process of its own: its steps, its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[1] / "resilience" / "programs"
#: File of each program.
FILES = {"training": "short_training.py", "threads": "threads.py"}
NAMES = tuple(FILES)
#: How long a hanging program gets to write its stacks.
LAST_WORDS = 1.0  # seconds


class SoakClient:
    """One run of a program.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    endpoint : str
        Of the server.
    folder : Path
        For the resume token and the program's standard error.
    seed : int
        Of the program: it decides the result.
    """

    def __init__(
        self, name: str, endpoint: str, folder: Path, seed: int, environment: dict[str, str]
    ) -> None:
        self.session = "soak"
        #: Steps done and to do.
        self.step = 0
        self.total = 0
        #: The last line, once there is one: ``result`` and ``statistics``.
        self.report: dict[str, Any] | None = None
        self._moved = threading.Condition()
        self._errors = folder / "client.log"
        command = [sys.executable, str(PROGRAMS / FILES[name]), "--seed", str(seed)]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    **environment,
                    "LUPINE_SERVER": endpoint.removeprefix("tcp://"),
                    "LUPINE_SESSION": self.session,
                    "LUPINE_STATE_DIR": str(folder / "client"),
                    # numpy's own threads would only fight for the few cores there are.
                    "OPENBLAS_NUM_THREADS": "1",
                },
            )
        self._reader = threading.Thread(target=self._read, name="soak-client")
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def await_share(self, share: float, timeout: float) -> bool:
        """Wait until this share of the steps is done; False if the program ends before."""

        def reached() -> bool:
            return bool(self.total) and self.step >= share * self.total

        with self._moved:
            self._moved.wait_for(lambda: reached() or not self._reader.is_alive(), timeout)
            return reached() and self.report is None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process for the length of a block: its session stands idle."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, None if the program does not end in time."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join()
        return code

    def close(self) -> None:
        """End the process; one that still runs writes its stacks before."""
        if not self.ended:
            self.process.send_signal(signal.SIGUSR1)
            if self.wait(LAST_WORDS) is None:
                self.process.kill()
        self.process.wait()
        self._reader.join()

    def errors(self) -> str:
        """Return what the program wrote to its standard error."""
        return self._errors.read_text()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._moved:
                    self._note(line)
                    self._moved.notify_all()
        with self._moved:
            self._moved.notify_all()

    def _note(self, line: str) -> None:
        if line.startswith("step "):
            _, number, _, total = line.split()
            self.step, self.total = int(number), int(total)
        elif line.startswith("{"):
            self.report = json.loads(line)
