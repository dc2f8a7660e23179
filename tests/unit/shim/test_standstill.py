"""How often, and for how long, a link comes back that leads nowhere."""

from __future__ import annotations

from outlast.shim.standstill import LONGEST_PAUSE, Standstill

SHORT = 5.0  # seconds


def test_one_lost_connection_is_followed_by_the_next_at_once() -> None:
    still = Standstill(SHORT)

    assert [still.lost(n, attached_at=n, now=n + 0.1) for n in range(5)] == [0.0] * 5
    assert still.lasted(10.0) == 0.0


def test_pauses_grow_while_nothing_moves_and_end_with_the_first_progress() -> None:
    still = Standstill(SHORT)

    pauses = [still.lost(7, attached_at=0.0, now=0.1) for _ in range(9)]

    assert pauses[:4] == [0.0, 0.05, 0.1, 0.2]
    assert max(pauses) == LONGEST_PAUSE
    assert still.lasted(3.1) == 3.0
    assert still.lost(8, attached_at=3.0, now=3.1) == 0.0


def test_what_a_new_worker_repeats_is_no_progress() -> None:
    still = Standstill(SHORT)
    still.lost(100, attached_at=0.0, now=1.0)
    still.lost(40, attached_at=1.0, now=2.0)

    assert still.lost(100, attached_at=2.0, now=3.0) > 0


def test_a_connection_that_stood_for_long_is_no_failure() -> None:
    still = Standstill(SHORT)
    still.lost(1, attached_at=0.0, now=0.1)
    still.lost(1, attached_at=0.1, now=0.2)

    assert still.lost(1, attached_at=1.0, now=1.0 + SHORT + 1) == 0.0
