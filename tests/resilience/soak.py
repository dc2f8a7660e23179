"""Kill session servers at many random points and compare every result with an undisturbed run.

Each point is a fresh server and a client program in processes of their own. A seed decides
the program, the checkpoint interval, the faults and their places; a point is run again by
its own seed with ``--points 1``. A JSON line for each point and one for all go to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.faults import Fault
from helpers.postgres import PostgresServer, running_postgres
from helpers.soak_client import NAMES
from helpers.soak_point import Outcome, Plan, Point, kill_all_points

from outlast.log import redact


@dataclass(frozen=True, slots=True)
class Options:
    """How points are run."""

    #: All traffic through the gateway's port.
    relay: bool = False
    #: URL of a journal, ``postgresql`` for a server of the soak's own, empty for SQLite.
    database: str = ""
    #: Keep the folders of points that went well, too.
    keep: bool = False
    #: Points at a time.
    jobs: int = 1


class Soak:
    """Runs points and collects their outcomes.

    Parameters
    ----------
    options : Options
        How they are run.
    folder : Path
        Where the points' folders go.
    """

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.outcomes: list[Outcome] = []
        #: Results of undisturbed runs, by program and its seed.
        self.references: dict[tuple[str, int], dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._postgres: PostgresServer | None = None

    def run(
        self,
        plans: Sequence[Plan],
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """Run a point for each plan; ``on_outcome`` is called for each as it ends."""

        def run(plan: Plan) -> None:
            outcome = self._point(plan)
            with self._lock:
                self.outcomes.append(outcome)
                on_outcome(outcome)

        with self._servers(), ThreadPoolExecutor(self.options.jobs) as pool:
            for key in dict.fromkeys((plan.program, plan.program_seed) for plan in plans):
                if key not in self.references:
                    self._reference(*key)
            list(pool.map(run, plans))

    def summary(self) -> dict[str, Any]:
        """Return the figures of all points together."""
        happened = [
            f["fault"] for o in self.outcomes for f in o.faults if f["hit"] and not f["late"]
        ]
        stalls = [s for o in self.outcomes for s in o.statistics.get("stalls_s", [])]
        return {
            "points": len(self.outcomes),
            "failed": [o.plan.seed for o in self.outcomes if o.problems],
            "faults": len(happened),
            "by_kind": {fault: Counter(happened)[fault] for fault in Fault},
            "replayed_calls": sum(o.statistics.get("replayed_calls", 0) for o in self.outcomes),
            "from_keeper": sum(o.statistics.get("from_keeper", 0) for o in self.outcomes),
            "reconnects": sum(o.statistics.get("reconnects", 0) for o in self.outcomes),
            "median_stall_s": round(statistics.median(stalls), 3) if stalls else 0.0,
            "max_stall_s": max(stalls, default=0.0),
        }

    @contextlib.contextmanager
    def _servers(self) -> Iterator[None]:
        if self.options.database != "postgresql":
            yield
            return
        with running_postgres() as self._postgres:
            yield

    @contextlib.contextmanager
    def _database(self) -> Iterator[str]:
        if self._postgres is None:
            yield self.options.database
            return
        with contextlib.ExitStack() as opened:
            with self._lock:
                url = opened.enter_context(self._postgres.database())
            yield url

    def _reference(self, program: str, program_seed: int) -> None:
        """Run a program undisturbed."""
        plan = Plan(-1, program, program_seed, 0.0, ())
        folder = self.folder / f"reference-{program}-{program_seed}"
        folder.mkdir(parents=True)
        outcome, result = Point(plan, folder).run(None)
        if result is None or outcome.problems:
            raise RuntimeError(f"the undisturbed run in {folder} failed: {outcome.problems}")
        self.references[program, program_seed] = result

    def _point(self, plan: Plan) -> Outcome:
        folder = self.folder / f"seed-{plan.seed}"
        folder.mkdir(parents=True)
        arguments = ["--relay"] if self.options.relay else []
        with self._database() as url:
            point = Point(plan, folder, arguments, url)
            outcome, _ = point.run(self.references[plan.program, plan.program_seed])
        if not outcome.problems and not self.options.keep:
            shutil.rmtree(folder)
        return outcome


class Bar:
    """Progress on stderr: a line that is written over on a terminal, else one now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._failed = 0
        self._begin = time.monotonic()

    def update(self, outcome: Outcome) -> None:
        """Count one more point."""
        self._done += 1
        self._failed += bool(outcome.problems)
        filled = "#" * (30 * self._done // self._total)
        seconds = time.monotonic() - self._begin
        text = f"[{filled:30}] {self._done}/{self._total} {self._failed} failed {seconds:.0f} s"
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)
        elif self._done == self._total or not self._done % 10:
            print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first point (any)")
    parser.add_argument("--relay", action="store_true", help="all traffic through the gateway")
    parser.add_argument(
        "--database", default="", metavar="URL", help="journal; 'postgresql' starts a server"
    )
    parser.add_argument("--program", default="", choices=("", *NAMES))
    parser.add_argument("--keep", action="store_true", help="keep all logs, not only of failures")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="points at a time")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 1 if a point failed."""
    parsed = parse(arguments)
    options = Options(parsed.relay, parsed.database, parsed.keep, parsed.jobs)
    first = random.SystemRandom().randrange(10**6) * 1000 if parsed.seed is None else parsed.seed
    plans = [Plan.of(seed, parsed.program) for seed in range(first, first + parsed.points)]
    folder = Path(tempfile.mkdtemp(prefix="outlast-soak-"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    print(f"seed {first}, logs in {folder}", file=sys.stderr)
    soak, bar, begin = Soak(options, folder), Bar(len(plans)), time.monotonic()

    def tell(outcome: Outcome) -> None:
        print(json.dumps(outcome.row()), flush=True)
        bar.update(outcome)
        if outcome.problems:
            print(failure(outcome, parsed, folder), file=sys.stderr, flush=True)

    soak.run(plans, tell)
    summary = {"summary": soak.summary(), "seconds": round(time.monotonic() - begin, 1)}
    print(json.dumps({"seed": first, **summary}), flush=True)
    failed = bool(soak.summary()["failed"])
    if not failed and not options.keep:
        shutil.rmtree(folder)
    return 1 if failed else 0


def failure(outcome: Outcome, options: argparse.Namespace, folder: Path) -> str:
    """Say what went wrong, where the logs are and how to run the point again."""
    seed = outcome.plan.seed
    again = f"python tests/resilience/soak.py --points 1 --seed {seed} --keep"
    again += f" --program {options.program}" if options.program else ""
    again += " --relay" if options.relay else ""
    again += f" --database {redact(options.database)}" if options.database else ""
    return f"\nFAILED {outcome.problems}\n  logs: {folder / f'seed-{seed}'}\n  again: {again}"


def _interrupted(number: int, _: object) -> None:
    """Leave at once, and no process behind."""
    kill_all_points()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
