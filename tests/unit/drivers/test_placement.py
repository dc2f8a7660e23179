"""Where allocations go, whatever the order of allocations and frees."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ConfigError
from outlast.server.drivers.placement import (
    ALIGNMENT,
    CHUNK,
    GRANULE,
    LARGE,
    RESTING,
    Block,
    Chunk,
    Placement,
)

MIB = 1 << 20
BASE, SIZE = 1 << 44, 4 << 30
SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 300).map(lambda n: n * MIB),
    st.sampled_from([LARGE - 1, LARGE, LARGE + 1, 2 * MIB, 20 * MIB]),
)
#: Free one of the live allocations, or allocate.
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10_000)), max_size=80)
Steps = list[tuple[bool, int, int]]


def run(placement: Placement, steps: Steps) -> list[int | None]:
    """Do allocations and frees; return the addresses in order."""
    live, given_out = [], []
    for free, size, choice in steps:
        if free and live:
            placement.remove(live.pop(choice % len(live)))
        else:
            address = placement.place(size)
            given_out.append(address)
            if address is not None:
                live.append(address)
    return given_out


@given(STEPS)
def test_live_allocations_are_aligned_inside_and_apart(steps: Steps) -> None:
    placement = Placement(BASE, SIZE)
    run(placement, steps)
    blocks = placement.blocks()
    for block in blocks:
        assert block.address % (GRANULE if block.size >= LARGE else ALIGNMENT) == 0
        assert block.address >= BASE
        assert block.address + block.size <= BASE + SIZE
    for block, after in itertools.pairwise(blocks):
        assert block.address + block.size <= after.address


@given(STEPS)
def test_addresses_follow_from_the_order_of_allocations_and_frees(steps: Steps) -> None:
    assert run(Placement(BASE, SIZE), steps) == run(Placement(BASE, SIZE), steps)


@given(STEPS, st.randoms(use_true_random=False))
def test_any_live_set_can_be_placed_again_in_any_order(steps: Steps, order: random.Random) -> None:
    before = Placement(BASE, SIZE)
    run(before, steps)
    blocks = before.blocks()
    order.shuffle(blocks)
    after = Placement(BASE, SIZE)
    assert all(after.place_at(*block) for block in blocks)
    assert after.blocks() == before.blocks()
    assert not any(after.place_at(*block) for block in blocks)
    for block in blocks:
        assert after.chunks(block.address) == before.chunks(block.address)
        assert after.find(block.address + block.size - 1) == block
    # Small ones go on as if nothing had happened.
    assert [after.place(n) for n in (1, 9 * MIB)] == [before.place(n) for n in (1, 9 * MIB)]


@given(STEPS)
def test_chunks_are_told_empty_once_nothing_lives_in_them(steps: Steps) -> None:
    placement = Placement(BASE, SIZE)
    mapped: set[Chunk] = set()
    live: list[int] = []
    for free, size, choice in steps:
        if free and live:
            empty = placement.remove(live.pop(choice % len(live)))
            assert mapped.issuperset(empty)
            mapped.difference_update(empty)
        elif (address := placement.place(size)) is not None:
            live.append(address)
            mapped.update(placement.chunks(address))
        assert mapped == {chunk for address in live for chunk in placement.chunks(address)}
    for address in live:
        mapped.difference_update(placement.remove(address))
    assert not mapped
    assert not placement.blocks()


@given(STEPS)
def test_chunks_cover_their_allocations_and_large_ones_share_none(steps: Steps) -> None:
    placement = Placement(BASE, SIZE)
    run(placement, steps)
    chunks: dict[Chunk, list[Block]] = {}
    for block in placement.blocks():
        mine = placement.chunks(block.address)
        assert mine[0].address <= block.address
        assert block.address + block.size <= mine[-1].address + mine[-1].size
        assert all(a.address + a.size == b.address for a, b in itertools.pairwise(mine))
        for chunk in mine:
            chunks.setdefault(chunk, []).append(block)
    for chunk, blocks in chunks.items():
        if any(block.size >= LARGE for block in blocks):
            (block,) = blocks
            assert chunk == (block.address, -(-block.size // GRANULE) * GRANULE)
        else:
            assert chunk.size == CHUNK
    ordered = sorted(chunks)
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(ordered))


@given(STEPS, SIZES)
def test_an_allocation_that_is_undone_takes_no_room(steps: Steps, size: int) -> None:
    placement = Placement(BASE, SIZE)
    run(placement, steps)
    blocks = placement.blocks()
    address = placement.place(size)
    if address is not None:
        placement.remove(address, rest=False)
        assert placement.blocks() == blocks
        assert placement.place_at(address, size)


def test_small_allocations_are_packed_across_chunks() -> None:
    placement = Placement(BASE, SIZE)
    addresses = [placement.place(20 * MIB) for _ in range(8)]
    assert addresses == [BASE + n * 20 * MIB for n in range(8)]
    chunks = {chunk for address in addresses for chunk in placement.chunks(address or 0)}
    assert len(chunks) * CHUNK == 8 * 20 * MIB


def test_holes_serve_small_requests_from_the_lowest_on() -> None:
    placement = Placement(BASE, SIZE)
    blocks = [placement.place(MIB) for _ in range(6)]
    placement.remove(blocks[1] or 0)
    placement.remove(blocks[4] or 0)
    assert placement.place(MIB + 1) == BASE + 6 * MIB
    assert placement.place(600) == blocks[1]
    assert placement.place(MIB) == blocks[4]
    assert placement.place(512) == (blocks[1] or 0) + 1024


def test_a_freed_large_range_rests_for_its_like() -> None:
    placement = Placement(BASE, SIZE)
    first, second = placement.place(64 * MIB), placement.place(64 * MIB)
    assert first is not None
    placement.remove(first)
    assert placement.place(40 * MIB) == (second or 0) + 64 * MIB
    assert placement.place(64 * MIB - 5) == first
    placement.remove(first)
    for n in range(RESTING):
        placement.remove(placement.place((66 + 2 * n) * MIB) or 0)
    # It has rested enough: the lowest gap again.
    assert placement.place(40 * MIB) == first


def test_resting_ranges_are_used_before_there_is_no_room() -> None:
    placement = Placement(BASE, SIZE)
    half = SIZE // 2
    address = placement.place(half - GRANULE)
    assert address is not None
    placement.remove(address)
    assert placement.place(half) == placement.boundary
    assert placement.place(LARGE) is None


def test_what_is_taken_misaligned_or_outside_is_refused() -> None:
    placement = Placement(BASE, SIZE)
    assert placement.place_at(BASE + 512, 1000)
    for address, size in (
        (BASE + 512, 1),
        (BASE + 1024, 512),
        (BASE, 1024),
        (BASE + 4096 + 8, 8),
        (BASE - 512, 512),
        (placement.boundary - 512, 1024),
        (placement.boundary + 512, 512),
        (BASE + SIZE - GRANULE, GRANULE + 1),
        (BASE + SIZE, 1),
    ):
        assert not placement.place_at(address, size)
    assert placement.place_at(placement.boundary + GRANULE, 1)
    assert [b.address - BASE for b in placement.blocks()] == [512, SIZE // 2 + GRANULE]


def test_an_address_belongs_to_the_allocation_around_it() -> None:
    placement = Placement(BASE, SIZE)
    placement.place(100)
    second = placement.place(1000) or 0
    assert placement.find(BASE + 99) == (BASE, 100)
    assert placement.find(BASE + 100) is None
    assert placement.find(second + 999) == (second, 1000)
    assert placement.find(BASE - 1) is None
    assert placement.starts(second)
    assert not placement.starts(second + 1)


@pytest.mark.parametrize(
    ("base", "size"), [(BASE + 4096, SIZE), (BASE, SIZE + 4096), (BASE, CHUNK)]
)
def test_a_range_that_is_not_made_of_granules_is_refused(base: int, size: int) -> None:
    with pytest.raises(ConfigError):
        Placement(base, size)
