"""Freed ranges and the fences before them, against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.freed import FreedRanges

RANGE = st.tuples(st.integers(0, 60), st.integers(1, 12))
STEPS = st.lists(st.tuples(st.sampled_from(["free", "ask", "done"]), RANGE), max_size=60)


@given(STEPS)
def test_a_range_is_behind_the_newest_unfinished_free_that_it_overlaps(
    steps: list[tuple[str, tuple[int, int]]],
) -> None:
    freed, noted, fence = FreedRanges(), [], 0
    for step, (start, length) in steps:
        end = start + length
        over = [f for a, b, f in noted if a < end and start < b]
        if step == "ask":
            assert freed.fence(start, end) == max(over, default=0)
        elif step == "done":
            limit = fence - start // 12
            freed.settle(lambda f, limit=limit: f <= limit)
            noted = [n for n in noted if n[2] > limit]
        elif not over:
            fence += 1
            freed.add(start, end, fence)
            noted.append((start, end, fence))
        assert len(freed) == len(noted)


def test_frees_without_work_between_them_share_a_fence() -> None:
    freed = FreedRanges()
    freed.add(0, 10, 7)
    freed.add(10, 20, 7)
    assert freed.fence(9, 11) == 7
    freed.settle(lambda fence: fence <= 6)
    assert len(freed) == 2
    freed.settle(lambda fence: fence <= 7)
    assert not freed
