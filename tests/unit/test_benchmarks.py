"""Benchmarks that stand on the insides of the server still run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_hot_path_can_be_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "bench_hot_path.py"), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["benchmark"] for line in done.stdout.splitlines()]
    assert "launch: client" in names
