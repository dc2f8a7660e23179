"""Train a digit classifier with CUDA kernels on a GPU that is somewhere else.

The GPU's server is named by ``LUPINE_SERVER``, the session by ``LUPINE_SESSION``. Nothing here
knows that the server may be stopped, killed and restarted meanwhile: the training goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from classifier import CudaError
from numpy.typing import NDArray
from training import DEFAULT_STEPS, train

import outlast.shim.driver as cuda  # or: from cuda.bindings import driver as cuda

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

BAR_WIDTH = 40  # characters


class PlainBar:
    """A progress bar for terminals without tqdm."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._text = ""

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Set what stands behind the bar."""
        self._text = text

    def update(self, steps: int) -> None:
        """Move the bar by ``steps``."""
        self._done += steps
        bar = ("#" * (BAR_WIDTH * self._done // self._total)).ljust(BAR_WIDTH)
        print(f"\r[{bar}] {self._done}/{self._total} {self._text}", end="", file=sys.stderr)

    def close(self) -> None:
        """End the line."""
        print(file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the training; the last line on stdout is its result as JSON."""
    options = parse(arguments)
    try:
        run(options)
    except (CudaError, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Train, and print the result."""
    file = open_losses(options.losses)
    bar = None if options.quiet else make_bar(options.steps)
    started = time.monotonic()
    try:
        trained = train(cuda, steps=options.steps, seed=options.seed, on_losses=reporter(bar, file))
    finally:
        for closable in (bar, file):
            if closable is not None:
                closable.close()
    # Outlast counts what the session went through; a local driver has nothing to count.
    statistics = getattr(cuda, "statistics", dict)
    result = {
        "steps": options.steps,
        "accuracy": round(trained.accuracy, 4),
        "final_loss": float(trained.losses[-1]),
        "seconds": round(time.monotonic() - started, 2),
        **statistics(),
    }
    print(json.dumps(result), flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=_positive, default=DEFAULT_STEPS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--losses", metavar="FILE", help="write every loss as a JSON line, bit for bit; -: stdout"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def open_losses(name: str | None) -> TextIO | None:
    """Open the file that gets the losses."""
    if name is None:
        return None
    return os.fdopen(os.dup(sys.stdout.fileno()), "w") if name == "-" else Path(name).open("w")


def reporter(bar: Any, file: TextIO | None) -> Callable[[int, NDArray[np.float32]], None]:
    """Return a callback that moves the bar and writes the losses."""

    def report(first: int, losses: NDArray[np.float32]) -> None:
        if bar is not None:
            bar.set_postfix_str(f"loss {losses[-1]:.4f}", refresh=False)
            bar.update(len(losses))
        if file is not None:
            for step, loss in enumerate(losses, first):
                print(json.dumps({"step": step, "loss": float(loss).hex()}), file=file)
            file.flush()

    return report


def make_bar(total: int) -> Any:
    """Return a progress bar: tqdm's if it is installed."""
    return PlainBar(total) if tqdm is None else tqdm(total=total, unit=" steps")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
