"""Addresses given out lowest first, against a plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.first_fit import FirstFit

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([64, 128, 300, 1000]))
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10_000)), max_size=120)
START, END = 100, 3000


def lowest(live: dict[int, int], size: int) -> int | None:
    """Return the lowest gap that fits, by looking at them all."""
    place = START
    for address in sorted(live):
        if address - place >= size:
            return place
        place = address + live[address]
    return place if END - place >= size else None


@given(STEPS)
def test_the_lowest_gap_that_fits_is_found_and_taken(steps: list[tuple[bool, int, int]]) -> None:
    space, live = FirstFit(START, END), {}
    for free, size, choice in steps:
        if free and live:
            address = sorted(live)[choice % len(live)]
            space.release(address, live.pop(address))
            continue
        expected = lowest(live, size)
        assert space.find(size) == expected
        assert space.take(size) == expected
        if expected is not None:
            live[expected] = size


@given(STEPS)
def test_an_exact_range_is_given_if_all_of_it_is_free(steps: list[tuple[bool, int, int]]) -> None:
    space, live = FirstFit(START, END), {}
    for free, size, choice in steps:
        if free and live:
            address = sorted(live)[choice % len(live)]
            space.release(address, live.pop(address))
            continue
        address = START + choice % (END - START)
        fits = address + size <= END and all(
            address + size <= other or other + length <= address for other, length in live.items()
        )
        assert space.take_at(address, size) == fits
        if fits:
            live[address] = size
        assert space.find(size) == lowest(live, size)
