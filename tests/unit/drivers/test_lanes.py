"""Ranges freed in the order of a stream, against a model of single bytes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.lanes import FEW, LaneRange, LaneRanges

SPACE = 40


@dataclass(frozen=True)
class NamedLane:
    """A stream that does nothing."""

    name: int

    def fence(self) -> int:
        return 0

    def follow(self, fence: int) -> None:
        raise AssertionError("nobody follows here")


@given(
    st.lists(
        st.tuples(st.integers(0, SPACE - 1), st.integers(1, 12), st.integers(0, 3)), max_size=40
    )
)
def test_a_range_is_cut_out_once_with_everyone_who_freed_a_part_of_it(
    steps: list[tuple[int, int, int]],
) -> None:
    ranges, model = LaneRanges(), dict[int, tuple[int, int]]()
    for number, (start, size, lane) in enumerate(steps, start=1):
        end = min(start + size, SPACE)
        cut = ranges.take(start, end)
        expected = {model.pop(byte) for byte in range(start, end) if byte in model}
        assert {(r.lane.name, r.fence) for r in cut if isinstance(r.lane, NamedLane)} == expected
        if lane:
            ranges.add(LaneRange(start, end, NamedLane(lane), number))
            model.update(dict.fromkeys(range(start, end), (lane, number)))
        kept = {byte for r in ranges._ranges.values() for byte in range(r.start, r.end)}
        assert kept == set(model)


def test_ranges_whose_work_is_done_are_forgotten_before_there_are_many() -> None:
    ranges = LaneRanges()
    done: set[int] = set()
    for number in range(1, 20 * FEW):
        ranges.add(LaneRange(number * 10, number * 10 + 10, NamedLane(number % 3), number))
        done.add(number - 5)
        ranges.settle(done.__contains__)
        assert len(ranges) <= FEW + 1
    assert ranges.take((number - 3) * 10, (number - 3) * 10 + 1)
