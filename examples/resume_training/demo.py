"""A training whose server is stopped, killed and restarted gives the losses of an undisturbed one.

Starts a session server, trains undisturbed, trains again while the server gets SIGTERM and then,
with all its workers, SIGKILL; compares every loss bit for bit. The last line is the result as
JSON; the exit code is 1 if anything is not as claimed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from observer import TRAIN, ObservedTraining, Run
from processes import SERVE, DemoError, ServerProcess, kill_marked
from verdict import Restart, Verdict, judge

DEFAULT_STEPS = 1500
LEAST_STEPS = 100  # so that both misfortunes meet a running training
#: Where in the training the server is stopped, and where it is killed.
STOP_AT, KILL_AT = 0.3, 0.65
STOP_DEADLINE = 40.0  # seconds; the server's own grace time is 30
TRAINING_DEADLINE = 120.0  # seconds
LOG_LINES = 20
INTERRUPTED = 130  # exit code after Ctrl-C
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Demo:
    """The demo's actors, in one folder."""

    folder: Path
    steps: int = DEFAULT_STEPS
    seed: int = 0
    device: str = "auto"
    serve: Sequence[str] = SERVE
    train: Sequence[str] = TRAIN
    #: Carried by the trainings, also by one whose start was interrupted.
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _began: float = field(default_factory=time.monotonic)

    def run(self, picture: Path) -> Verdict:
        """Do all of it.

        Raises
        ------
        DemoError
            If a process fails or a deadline passes.
        """
        draw = painter()
        if draw is None:
            self._say("no picture will be drawn without matplotlib: pip install matplotlib")
        with self._closing:
            server = ServerProcess(
                self.folder / "state", self.folder / "server.log", self.device, self.serve
            )
            self._closing.callback(server.close)
            self._closing.callback(kill_marked, self._mark)
            self._start(server)
            undisturbed = self._undisturbed(server)
            disturbed, restarts = self._disturbed(server)
            verdict = judge(undisturbed, disturbed, restarts, self.steps)
            code = server.terminate(STOP_DEADLINE)
            if code != 0:
                verdict.failures.append(f"the last SIGTERM ended with exit code {code}")
        if draw is not None:
            draw(undisturbed, disturbed, restarts, picture)
            self._say(f"both loss curves are drawn in {picture}")
        return verdict

    def _undisturbed(self, server: ServerProcess) -> Run:
        self._say(f"first training: {self.steps} steps, undisturbed")
        run = self._train(server, "undisturbed").finish(TRAINING_DEADLINE)
        self._say(f"first training done, accuracy {run.result['accuracy']}")
        return run

    def _disturbed(self, server: ServerProcess) -> tuple[Run, list[Restart]]:
        self._say("second training: the same, in a new session, with a server that dies twice")
        training = self._train(server, "disturbed")
        restarts = [
            self._disturb(server, training, "SIGTERM", STOP_AT, self._stop),
            self._disturb(server, training, "SIGKILL", KILL_AT, self._kill),
        ]
        run = training.finish(TRAINING_DEADLINE)
        self._say(
            f"second training done, accuracy {run.result['accuracy']}, "
            f"{run.result['replayed_calls']} calls were replayed"
        )
        return run, restarts

    def _disturb(
        self,
        server: ServerProcess,
        training: ObservedTraining,
        name: str,
        part: float,
        end: Callable[[ServerProcess], None],
    ) -> Restart:
        """End the server by ``end`` at a part of the training, restart it, measure the stall."""
        training.wait_for_step(round(part * self.steps), TRAINING_DEADLINE)
        began, step = time.monotonic(), training.step
        self._say(f"step {step}: {name}")
        end(server)
        self._start(server)
        training.wait_for_report_after(time.monotonic(), TRAINING_DEADLINE)
        restart = Restart(name, step, began, time.monotonic(), training.stall(began))
        self._say(f"the training goes on; it stood still for {restart.stall:.2f} s")
        return restart

    def _stop(self, server: ServerProcess) -> None:
        code = server.terminate(STOP_DEADLINE)
        if code != 0:
            raise DemoError(f"after SIGTERM the server ended with exit code {code}, not 0")
        self._say("the server saved the session and ended with exit code 0")

    def _kill(self, server: ServerProcess) -> None:
        pids = server.kill()
        self._say(f"{len(pids)} server processes were killed ({', '.join(map(str, pids))})")

    def _start(self, server: ServerProcess) -> None:
        server.start()
        self._say(f"server {server.pid} is ready at {server.endpoint}")

    def _train(self, server: ServerProcess, session: str) -> ObservedTraining:
        options = ["--steps", str(self.steps), "--seed", str(self.seed)]
        log = self.folder / f"{session}.log"
        training = ObservedTraining(server.endpoint, session, options, log, self.train, self._mark)
        self._closing.callback(training.close)
        return training

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.2f} s] {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = parse(arguments)
    for number in END_SIGNALS:
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as name:
        folder = Path(name)
        try:
            verdict = Demo(folder, options.steps, options.seed, options.device).run(options.picture)
        except DemoError as error:
            print(logs(folder), file=sys.stderr)
            print(json.dumps({"bit_identical": False, "failures": [str(error)]}), flush=True)
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED
    print(json.dumps(verdict.line()), flush=True)
    return 1 if verdict.failures else 0


def painter() -> Callable[..., Any] | None:
    """Return what draws the picture; nothing where matplotlib is missing."""
    try:
        from picture import draw
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return None
    return draw


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=_enough, default=DEFAULT_STEPS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "emulated"))
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), metavar="FILE")
    options = parser.parse_args(arguments)
    if not options.picture.absolute().parent.is_dir():
        parser.error(f"--picture: {options.picture.parent} is no folder")
    return options


def logs(folder: Path) -> str:
    """Return the last lines of every log in ``folder``."""
    parts = []
    for path in sorted(folder.glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
        parts.append("\n".join([f"--- {path.name}", *lines]))
    return "\n".join(parts)


def _enough(text: str) -> int:
    number = int(text)
    if number < LEAST_STEPS:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_STEPS}")
    return number


def _interrupt(number: int, frame: object) -> None:
    """End the demo; a second Ctrl-C must not cut its cleaning up short."""
    for each in END_SIGNALS:
        signal.signal(each, _ignore)
    raise KeyboardInterrupt


def _ignore(number: int, frame: object) -> None:
    """Take no notice of a signal (SIG_IGN would make Python complain about one on its way)."""


if __name__ == "__main__":
    sys.exit(main())
