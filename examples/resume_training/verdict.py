"""What the demo claims, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from observer import Run

LEAST_ACCURACY = 0.95
RESTARTS = 2


@dataclass(frozen=True, slots=True)
class Restart:
    """One planned misfortune and how long it held the training up."""

    #: ``SIGTERM`` or ``SIGKILL``.
    signal: str
    #: Number of steps whose loss was known when the signal was sent.
    step: int
    #: Seconds, monotonic, of the signal and of the first loss after it.
    began: float
    ended: float
    stall: float  # seconds


@dataclass(slots=True)
class Verdict:
    """Outcome of the demo; right if ``failures`` is empty."""

    bit_identical: bool
    accuracy: float
    restarts: int
    replayed_calls: int
    stall_s: list[float]
    failures: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return what the demo prints last."""
        record: dict[str, Any] = {
            "bit_identical": self.bit_identical,
            "accuracy": self.accuracy,
            "restarts": self.restarts,
            "replayed_calls": self.replayed_calls,
            "stall_s": self.stall_s,
        }
        if self.failures:
            record["failures"] = self.failures
        return record


def judge(undisturbed: Run, disturbed: Run, restarts: Sequence[Restart], steps: int) -> Verdict:
    """Compare two runs bit for bit and check every claim of the demo."""
    difference = first_difference(undisturbed.losses, disturbed.losses)
    accuracy = min(float(run.result["accuracy"]) for run in (undisturbed, disturbed))
    verdict = Verdict(
        bit_identical=difference is None,
        accuracy=accuracy,
        restarts=len(restarts),
        replayed_calls=int(disturbed.result["replayed_calls"]),
        stall_s=[round(restart.stall, 2) for restart in restarts],
    )
    if difference is not None:
        verdict.failures.append(f"the losses differ from step {difference} on")
    for name, run in (("undisturbed", undisturbed), ("disturbed", disturbed)):
        if [report.step for report in run.reports] != list(range(steps)):
            verdict.failures.append(f"the {name} run did not report each of {steps} steps once")
    if not accuracy > LEAST_ACCURACY:
        verdict.failures.append(f"accuracy {accuracy} is not above {LEAST_ACCURACY}")
    if undisturbed.result["accuracy"] != disturbed.result["accuracy"]:
        verdict.failures.append("the two runs reach different accuracies")
    if len(restarts) != RESTARTS:
        verdict.failures.append(f"{len(restarts)} restarts were made, not {RESTARTS}")
    return verdict


def first_difference(left: Sequence[str], right: Sequence[str]) -> int | None:
    """Return the first index at which two sequences differ (None: they are equal)."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
