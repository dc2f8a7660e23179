"""The demo's picture: both loss curves, and how the steps went by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from observer import Run
from verdict import Restart

matplotlib.use("Agg")
from matplotlib import pyplot

CALM, STORMY = "#9db8d9", "#1b3a5d"
SIGNAL_COLOURS = {"SIGTERM": "#d98e04", "SIGKILL": "#c2222b"}


def draw(undisturbed: Run, disturbed: Run, restarts: Sequence[Restart], path: Path) -> None:
    """Write the picture to ``path``."""
    figure, (losses, progress) = pyplot.subplots(
        2, 1, figsize=(10, 8), height_ratios=(3, 2), layout="constrained"
    )
    _draw_losses(losses, undisturbed, disturbed, restarts)
    _draw_progress(progress, undisturbed, disturbed, restarts)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_losses(axes: Any, undisturbed: Run, disturbed: Run, restarts: Sequence[Restart]) -> None:
    calm, stormy = _numbers(undisturbed), _numbers(disturbed)
    axes.plot(calm, color=CALM, linewidth=4, label="undisturbed")
    axes.plot(stormy, color=STORMY, linewidth=0.8, label="server stopped, killed and restarted")
    for restart in restarts:
        colour = SIGNAL_COLOURS[restart.signal]
        axes.axvline(restart.step, color=colour, linestyle="--", linewidth=1.5)
        axes.annotate(
            f" {restart.signal} at step {restart.step}\n stood still {restart.stall:.1f} s",
            (restart.step, 0.98),
            xycoords=("data", "axes fraction"),
            color=colour,
            verticalalignment="top",
        )
    same = np.array_equal(calm, stormy)
    axes.set(
        title="The same losses, bit for bit" if same else "The losses differ",
        xlabel="step",
        ylabel="loss (cross entropy)",
        yscale="log",
    )
    axes.legend(loc="lower left")
    axes.grid(alpha=0.3)


def _draw_progress(
    axes: Any, undisturbed: Run, disturbed: Run, restarts: Sequence[Restart]
) -> None:
    for run, colour, width in ((undisturbed, CALM, 4.0), (disturbed, STORMY, 1.5)):
        begin = run.reports[0].time
        times = [report.time - begin for report in run.reports]
        axes.plot(times, [report.step for report in run.reports], color=colour, linewidth=width)
    begin = disturbed.reports[0].time
    for restart in restarts:
        axes.axvspan(
            restart.began - begin,
            restart.ended - begin,
            color=SIGNAL_COLOURS[restart.signal],
            alpha=0.25,
            label=f"{restart.signal} to the first loss after it",
        )
    axes.set(title="Progress", xlabel="seconds since the first loss", ylabel="step")
    if restarts:
        axes.legend(loc="lower right")
    axes.grid(alpha=0.3)


def _numbers(run: Run) -> NDArray[np.float64]:
    return np.array([float.fromhex(loss) for loss in run.losses])
