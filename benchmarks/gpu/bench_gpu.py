"""Outlast on a GPU against the same calls made there directly: JSON lines, then a table.

Run ``python benchmarks/gpu/bench_gpu.py`` on a host with a GPU. Client and server run on this
host and talk over loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from harness import session  # noqa: E402

LIMIT = 240.0  # seconds, of one part
NARROW = 256 << 20  # bytes of a client's log
#: Published figures of other programs for the same calls: LUPINE (main, 2026-08) and rGPU 0.1.1
#: with client and server on one H200 host, one run each.
PUBLISHED: dict[str, tuple[str, str]] = {
    "kernel launch, issue": ("5.32", "-"),
    "kernel launch, with final sync": ("6.04", "-"),
    "idle cuStreamSynchronize": ("35.3", "-"),
    "launch + synchronize": ("47.4", "-"),
    "cuMemGetInfo": ("38.0", "-"),
    "cuMemAlloc + cuMemFree of 2 MiB": ("129", "-"),
    "4 KiB copy to host": ("46.9", "-"),
    "4 KiB copy to device": ("46.6", "-"),
    "256 MiB to device, pageable": ("2.64", "-"),
    "256 MiB to host, pageable": ("3.01", "-"),
    "256 MiB to device, pinned": ("4.31", "-"),
    "256 MiB to host, pinned": ("1.47", "-"),
}
COLUMNS = ("native", "outlast")

Figures = dict[str, dict[str, str]]


def run(command: list[str], figures: Figures) -> bool:
    """Run one part and take in the lines that it prints; return whether it succeeded."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        text, code = (error.stdout or b"").decode(), 1
    for line in text.splitlines():
        print(line, flush=True)
        if line.startswith("{"):
            take(json.loads(line), figures)
    return code == 0


def take(row: dict[str, Any], figures: Figures) -> None:
    """Enter one printed figure."""
    name = row["benchmark"] if row["by"] in COLUMNS else f"{row['by']} device: {row['benchmark']}"
    column = row["by"] if row["by"] in COLUMNS else "outlast"
    figures.setdefault(name, {"unit": row["unit"]})[column] = f"{row['value']:.4g}"


def table(figures: Figures) -> str:
    """Return the figures as a table in Markdown."""
    lines = ["| figure | native | Outlast | LUPINE | rGPU |", "|---|---|---|---|---|"]
    for name, row in figures.items():
        published = PUBLISHED.get(name, ("-", "-"))
        cells = [f"{name}, {row['unit']}", *(row.get(c, "-") for c in COLUMNS), *published]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run every part; return 1 if one failed."""
    figures: Figures = {}
    python = sys.executable
    good = run([python, str(HERE / "figures.py"), "native"], figures)
    with session(device="cuda"):
        good &= run([python, str(HERE / "figures.py"), "outlast"], figures)
        # This one is full with one copy, and has to spill or be saved.
        os.environ["LUPINE_REPLAY_LIMIT"] = str(NARROW)
        copies = ["outlast", "--copies", "log of 256 MiB"]
        good &= run([python, str(HERE / "figures.py"), *copies], figures)
        del os.environ["LUPINE_REPLAY_LIMIT"]
    for name in ("LUPINE_SERVER", "LUPINE_STATE_DIR"):
        os.environ.pop(name, None)
    good &= run([python, str(HERE.parent / "bench_copies.py"), "--device", "cuda"], figures)
    good &= run([python, str(HERE / "recovery.py")], figures)
    pinned = [] if shutil.which("taskset") is None else ["taskset", "-c", "0,1"]
    good &= run([*pinned, python, str(HERE / "emulated.py")], figures)
    print(table(figures), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
