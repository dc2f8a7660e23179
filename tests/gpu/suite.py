"""Runs all test files that mean something on a GPU, several at a time, and sums them up.

Each file has a pytest process of its own. Tests that need the device to themselves (marked
``whole_device``) run at the end, one file after another. What a file prints comes out in the
order of the list below, whichever is done first; a file that fails stops no other one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
#: Told to every process of a test file, so that none of them outlives it.
MARK = "TEST_FILE_MARK"
ALONE = "whole_device"
#: Files, those that take longest first. Those outside of this folder run on any device.
FILES = tuple(
    f"tests/{name}.py"
    for name in (
        *("gpu/test_training", "resilience/test_termination", "gpu/test_addresses"),
        *("resilience/test_fault_recovery", "resilience/test_handed_over_memory"),
        *("resilience/test_gateway_succession", "resilience/test_failing_checkpoints"),
        *("resilience/test_snapshots", "resilience/test_adoption", "gpu/test_sessions"),
        *("resilience/test_ordered_memory", "resilience/test_order_by_waits"),
        *("resilience/test_corrupt_checkpoints",),
        *("resilience/test_stable_addresses", "resilience/test_sticky_errors"),
        *("resilience/test_landings", "gpu/test_driver", "gpu/test_arena"),
        *("integration/test_order_of_copies", "integration/test_waits"),
        *("integration/test_launch_errors", "integration/test_pointers"),
        *("integration/test_ordered_memory", "integration/test_pinned_memory"),
        *("integration/test_handle_reuse", "integration/test_bad_handles"),
        *("integration/test_threads", "gpu/test_cycles", "gpu/test_full_device"),
        *("integration/test_polling", "resilience/test_polling"),
        *("integration/test_full_streams", "resilience/test_full_streams"),
        "gpu/test_instructions",
        *("resilience/test_libraries", "integration/test_links", "integration/test_fatbins"),
        *("integration/test_rows", "gpu/test_code"),
    )
)
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Result:
    """What became of a file."""

    file: str
    output: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Suite:
    """Runs files until a moment.

    Parameters
    ----------
    folder : Path
        For reports.
    end : float
        Of the monotonic clock: what is not over by then is ended.
    timeout : float
        Seconds of a single test.
    expression : str
        Choice of tests, as pytest has it; empty: all.
    """

    def __init__(self, folder: Path, end: float, timeout: float, expression: str) -> None:
        self._folder = folder
        self._end = end
        self._timeout = timeout
        self._expression = expression

    def run(self, file: str, alone: bool) -> Result:
        """Run one file, or its tests that need the device to themselves."""
        result, mark, began = Result(file), uuid.uuid4().hex, time.monotonic()
        report = self._folder / f"{mark}.xml"
        left = self._end - began
        if left <= 0:
            result.failures.append(f"{file}: not run, the time was up")
            result.counts["failed"] += 1
            return result
        process = subprocess.Popen(
            self._command(file, alone, report),
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        over = threading.Event()

        def stop() -> None:
            over.set()
            end_marked(mark)

        watch = threading.Timer(left, stop)
        watch.start()
        result.output, _ = process.communicate()
        watch.cancel()
        for pid in end_marked(mark):
            result.output += f"process {pid} was left behind\n"
        result.seconds = time.monotonic() - began
        read_report(report, result)
        if over.is_set() or process.returncode not in (0, 1, 5):  # 5: there are no such tests
            reason = "ended, the time was up" if over.is_set() else f"exit {process.returncode}"
            result.failures.append(f"{file}: {reason}")
            result.counts["failed"] += 1
        return result

    def _command(self, file: str, alone: bool, report: Path) -> list[str]:
        folder = str(Path(file).parent)
        # Not the settings of all tests: they need a database that need not be here.
        command = [sys.executable, "-m", "pytest", "-q", f"--confcutdir={folder}"]
        command += ["-p", "no:cacheprovider", "-p", "helpers.server_logs"]
        command += [f"--timeout={self._timeout:g}", "--durations=3", "--durations-min=3"]
        command += [f"--junitxml={report}", "-m", ALONE if alone else f"not {ALONE}"]
        if self._expression:
            command += ["-k", self._expression]
        return [*command, file]


def end_marked(mark: str) -> list[int]:
    """SIGKILL the processes that carry a mark; return them."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes end while we look; those of other users are not ours.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found.append(int(folder.name))
    return found


def read_report(report: Path, result: Result) -> None:
    """Take in what pytest has written of a file; nothing if it did not come to that."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        if "skipped" in kinds:
            outcome = "skipped"
        result.counts[outcome] += 1
        if outcome == "failed":
            result.failures.append(f"{result.file}::{case.get('name')}")


def show(result: Result) -> None:
    """Print what a file has printed."""
    if result.output.strip():
        print(f"=== {result.file}: {result.seconds:.1f} s\n{result.output}", flush=True)


def table(results: Sequence[Result]) -> str:
    """Return one row a file, and what failed."""
    rows: dict[str, Result] = {}
    for result in results:
        row = rows.setdefault(result.file, Result(result.file))
        row.counts += result.counts
        row.seconds += result.seconds
        row.failures += result.failures
    total = Result("all", counts=sum((r.counts for r in rows.values()), Counter()))
    lines = [f"{'file':44}" + "".join(f"{name:>9}" for name in OUTCOMES) + f"{'seconds':>9}"]
    for row in [*rows.values(), total]:
        counts = "".join(f"{row.counts[name]:9}" for name in OUTCOMES)
        lines.append(f"{row.file.removeprefix('tests/'):44}{counts}{row.seconds or '':9.5}")
    lines += [f"FAILED {name}" for row in rows.values() for name in row.failures]
    return "\n".join(lines)


def main() -> int:
    """Run everything; return 1 if something failed."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", dest="expression", metavar="EXPR")
    parser.add_argument("--jobs", type=int, default=max(1, min(5, cores // 3)), metavar="N")
    parser.add_argument("--limit", type=float, default=480.0, metavar="SECONDS")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args()
    began = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        suite = Suite(Path(name), began + options.limit, options.timeout, options.expression)
        running: list[Future[Result]] = [pool.submit(suite.run, file, False) for file in FILES]
        for future in running:
            results.append(future.result())
            show(results[-1])
        for file in FILES:
            if ALONE in (ROOT / file).read_text():
                results.append(suite.run(file, True))
                show(results[-1])
    print(table(results))
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
