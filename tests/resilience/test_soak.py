"""A short soak in every run of the tests; the long ones are `make soak`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.faults import Fault
from helpers.soak_client import NAMES
from helpers.soak_point import Plan
from resilience.soak import Options, Soak

#: First seeds of the short soak, whose points have every kind of fault between them.
SEEDS = {"training": 7201, "threads": 7281}
POINTS = 6
FAULTS = 2
JOBS = 2


def plans(program: str, first: int) -> list[Plan]:
    """Draw points of few faults that share one undisturbed run."""
    points = [Plan.of(seed, program) for seed in range(first, first + POINTS)]
    return [replace(point, program_seed=0, faults=point.faults[:FAULTS]) for point in points]


def assert_identical(soak: Soak, points: list[Plan]) -> None:
    """Run the points; fail with everything that went wrong."""
    soak.run(points)
    problems = {o.plan.seed: o.problems for o in soak.outcomes if o.problems}
    assert not problems, f"logs in {soak.folder}"
    assert len(soak.outcomes) == len(points)
    assert soak.summary()["faults"] >= len(points) // 2


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", NAMES)
def test_results_are_bit_identical_whatever_happens_to_the_server(
    program: str, tmp_path: Path
) -> None:
    assert_identical(Soak(Options(jobs=JOBS), tmp_path), plans(program, SEEDS[program]))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options", [Options(relay=True, jobs=JOBS), Options(database="postgresql")]
)
def test_results_are_bit_identical_over_the_relay_and_with_postgresql(
    options: Options, tmp_path: Path
) -> None:
    assert_identical(Soak(options, tmp_path), plans("training", 9000))


def test_the_short_soak_has_every_kind_of_fault() -> None:
    points = [point for program, first in SEEDS.items() for point in plans(program, first)]

    assert {planned.fault for point in points for planned in point.faults} == set(Fault)


def test_a_seed_decides_everything_about_a_point() -> None:
    assert Plan.of(17) == Plan.of(17)
    assert Plan.of(17) != Plan.of(18)
    assert Plan.of(17, "threads").faults == Plan.of(17, "training").faults


def test_a_lost_result_is_reported_with_its_seed(tmp_path: Path) -> None:
    soak = Soak(Options(), tmp_path)
    plan = Plan(4, "threads", 0, 0.0, ())
    soak.references["threads", 0] = {"digests": []}

    soak.run([plan])

    assert soak.summary()["failed"] == [4]
    assert "another result" in soak.outcomes[0].problems[0]
    assert (tmp_path / "seed-4" / "state.log").exists()
