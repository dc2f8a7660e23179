"""A short digits training as a client program of the soak: its losses are its result."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from report import Report

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "resume_training"))

import numpy as np
from numpy.typing import NDArray
from training import train

import outlast.shim.driver as cuda


def main() -> int:
    """Train, telling every few steps; the last line is the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    report = Report(options.steps)

    def tell(first: int, losses: NDArray[np.float32]) -> None:
        report.step(first + len(losses))

    trained = train(cuda, steps=options.steps, seed=options.seed, on_losses=tell)
    losses = [float(loss).hex() for loss in trained.losses]
    report.result({"losses": losses, "accuracy": trained.accuracy.hex()}, cuda.statistics())
    return 0


if __name__ == "__main__":
    sys.exit(main())
