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


def test_replays_that_diverge_do_not_park() -> None:
    crashes = CrashCount()

    assert not any(crashes.died(7, "", DIVERGED) for _ in range(20))
