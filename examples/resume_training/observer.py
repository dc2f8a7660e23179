"""A training that runs in another process, watched through the losses it prints."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import KILL_DEADLINE, MARK, DemoError

TRAIN = (sys.executable, str(Path(__file__).resolve().parent / "train.py"))


@dataclass(frozen=True, slots=True)
class Report:
    """One loss, when it was seen."""

    time: float  # seconds, monotonic
    step: int
    #: The loss as hexadecimal text: equal text means equal bits.
    loss: str


@dataclass(frozen=True, slots=True)
class Run:
    """A finished training."""

    reports: tuple[Report, ...]
    #: What train.py printed last.
    result: dict[str, Any]

    @property
    def losses(self) -> list[str]:
        """The losses as hexadecimal text, step by step."""
        return [report.loss for report in self.reports]


class ObservedTraining:
    """train.py as a child process.

    Parameters
    ----------
    server
        Endpoint of the session server.
    session
        Name of the session.
    options
        Command line options of train.py.
    log
        File that gets what it says on stderr.
    command
        What to run in place of train.py.
    mark
        What the process carries, for `processes.kill_marked`.
    """

    def __init__(
        self,
        server: str,
        session: str,
        options: Sequence[str],
        log: Path,
        command: Sequence[str] = TRAIN,
        mark: str = "",
    ) -> None:
        self._session = session
        self._changed = threading.Condition()
        self._reports: list[Report] = []
        self._result: dict[str, Any] = {}
        self._ended = False
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [*command, "--quiet", "--losses", "-", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
                env={
                    **os.environ,
                    MARK: mark,
                    "LUPINE_SERVER": server,
                    "LUPINE_SESSION": session,
                    # The resume token is worth nothing once this server's folder is gone.
                    "LUPINE_STATE_DIR": str(log.parent / "client"),
                },
                start_new_session=True,
            )
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def step(self) -> int:
        """Number of steps whose loss is known."""
        with self._changed:
            return len(self._reports)

    def wait_for_step(self, step: int, deadline: float) -> None:
        """Wait until the losses of ``step`` steps are known."""
        self._wait(lambda: len(self._reports) >= step, deadline, f"step {step}")

    def wait_for_report_after(self, moment: float, deadline: float) -> None:
        """Wait for a loss that arrives later than ``moment`` (monotonic seconds), or the result.

        A training can come to its end before a busy observer notes the moment.
        """
        self._wait(
            lambda: bool(self._result or (self._reports and self._reports[-1].time > moment)),
            deadline,
            "the training to go on",
        )

    def stall(self, since: float) -> float:
        """Return the longest time without a loss that ended after ``since``, in seconds."""
        with self._changed:
            return longest_gap([report.time for report in self._reports], since)

    def finish(self, deadline: float) -> Run:
        """Wait for the end of the training.

        Raises
        ------
        DemoError
            If it fails, or takes longer than ``deadline`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, deadline):
                raise DemoError(f"training {self._session} took more than {deadline:.0f} s")
        code = self._process.wait(KILL_DEADLINE)
        if code != 0 or not self._result:
            raise DemoError(f"training {self._session} ended with exit code {code}")
        return Run(tuple(self._reports), self._result)

    def close(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait(KILL_DEADLINE)

    def _wait(self, reached: Callable[[], bool], deadline: float, what: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or reached(), deadline)
            if reached():
                return
            why = "it ended" if self._ended else f"{deadline:.0f} s passed"
            raise DemoError(f"training {self._session}: waited for {what}, but {why}")

    def _watch(self) -> None:
        stdout = self._process.stdout
        if stdout is not None:
            with stdout:
                for line in stdout:
                    if line.startswith("{"):
                        self._read(json.loads(line))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read(self, record: dict[str, Any]) -> None:
        with self._changed:
            if "loss" in record:
                report = Report(time.monotonic(), record["step"], record["loss"])
                self._reports.append(report)
            else:
                self._result = record
            self._changed.notify_all()


def longest_gap(times: Sequence[float], since: float) -> float:
    """Return the longest distance between neighbours of which the later is after ``since``."""
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > since), default=0.0)
