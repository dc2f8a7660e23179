"""Deaths of workers: which of them count, and when they park a session."""

from __future__ import annotations

import signal

from outlast.server.workers import DIVERGED, CrashCount


def test_kills_from_outside_between_calls_never_park() -> None:
    crashes = CrashCount()

    assert not any(crashes.died(7, "", -signal.SIGKILL) for _ in range(20))


def test_a_call_that_ends_its_worker_twice_parks() -> None:
    crashes = CrashCount()

    assert not crashes.died(7, "LAUNCH", -signal.SIGKILL)
    assert (
        crashes.died(7, "LAUNCH", -signal.SIGKILL) == "call 7 (LAUNCH) ended its worker by SIGKILL"
    )


def test_crashes_at_different_calls_park_when_nothing_is_saved_in_between() -> None:
    crashes = CrashCount()

    assert not crashes.died(7, "", -signal.SIGSEGV)
    assert not crashes.died(9, "", -signal.SIGSEGV)
    assert crashes.died(8, "", -signal.SIGSEGV)


def test_an_epoch_forgets_the_deaths_before_it() -> None:
    crashes = CrashCount()
    crashes.died(7, "LAUNCH", -signal.SIGSEGV)

    crashes.progressed(7)

    assert not crashes.died(7, "LAUNCH", -signal.SIGSEGV)


def test_a_worker_that_fails_by_itself_again_and_again_parks() -> None:
    crashes = CrashCount()

    assert not crashes.died(7, "", 1)
    assert "exit code 1" in crashes.died(7, "", 1)


def test_a_worker_that_could_not_begin_does_not_park() -> None:
    crashes = CrashCount()

    assert not any(crashes.died(0, "", 1, ready=False) for _ in range(20))


def test_the_end_of_a_worker_whose_replay_diverged_is_no_crash() -> None:
    crashes = CrashCount()

    assert not any(crashes.died(7, "", DIVERGED) for _ in range(20))


def diverging(how: list[str], seconds: float) -> list[str]:
    """Let replays diverge at call 7, evenly spread over a time; return what came of each."""
    times = iter([seconds * index / (len(how) - 1) for index in range(len(how))])
    now = 0.0
    crashes = CrashCount(lambda: now)
    found = []
    for each in how:
        now = next(times)
        found.append(crashes.diverged(7, each))
    assert crashes
    return found


def test_replays_that_diverge_alike_for_long_park_and_name_the_call() -> None:
    assert diverging(["no memory"] * 3, 30.0) == [
        "",
        "",
        "call 7 cannot be replayed, 3 times alike: no memory",
    ]


def test_replays_that_diverge_alike_for_a_moment_are_tried_again() -> None:
    assert not any(diverging(["no memory"] * 20, 29.0))


def test_replays_that_diverge_each_in_its_own_way_are_tried_again() -> None:
    assert not any(diverging(["no memory", "no module"] * 5, 300.0))


def test_an_epoch_forgets_the_divergences_before_it() -> None:
    now = 0.0
    crashes = CrashCount(lambda: now)
    crashes.diverged(7, "no memory")
    crashes.diverged(7, "no memory")
    now = 40.0

    crashes.progressed(6)

    assert not crashes
    assert not crashes.diverged(7, "no memory")
