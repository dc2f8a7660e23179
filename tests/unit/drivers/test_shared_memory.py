"""Memory that goes from one arena to the next, as it does between processes."""

from __future__ import annotations

import os
from typing import Any

from helpers.device_memory import DEVICE, MIB, allocate, fill, free_bytes, word

from outlast.server.drivers.placement import CHUNK, Chunk

INVALID_VALUE = 1


def test_shared_memory_is_taken_over_with_its_contents(cuda: Any, make_arena: Any) -> None:
    before = make_arena()
    sizes = [700, 20 * MIB, 20 * MIB, 33 * MIB, 400 * MIB]
    live = [allocate(before, size) for size in sizes]
    idle = allocate(before, 64 * MIB)
    for number, address in enumerate(live):
        fill(cuda, address, 512, number)
    before.release(idle)
    assert cuda.cuCtxSynchronize()[0] == 0
    blocks = before.allocations()
    shared = {chunk: before.share(chunk)[1] for chunk in before.chunks()}
    assert sum(chunk.size for chunk in shared) == 2 * CHUNK + 34 * MIB + 400 * MIB
    before.close()
    assert cuda.cuMemGetInfo()[1] == DEVICE
    after = make_arena()
    try:
        assert after.adopt(blocks, shared) == 0
    finally:
        for descriptor in shared.values():
            os.close(descriptor)
    assert [word(cuda, address) for address in live] == [n * 0x01010101 for n in range(5)]
    assert (after.allocations(), after.reclaimable) == (blocks, 0)
    assert free_bytes(cuda, after) == DEVICE - after.mapped
    assert allocate(after, 12 * MIB) == live[2] + 20 * MIB
    for address in live:
        assert after.release(address) == 0


def test_memory_that_was_taken_over_is_shared_again(cuda: Any, make_arena: Any) -> None:
    arena = make_arena()
    address = allocate(arena, 40 * MIB)
    fill(cuda, address, 512, 7)
    assert cuda.cuCtxSynchronize()[0] == 0
    for _ in range(3):
        blocks = arena.allocations()
        shared = {chunk: arena.share(chunk)[1] for chunk in arena.chunks()}
        arena.close()
        arena = make_arena()
        assert arena.adopt(blocks, shared) == 0
        for descriptor in shared.values():
            os.close(descriptor)
        assert word(cuda, address) == 7 * 0x01010101


def test_allocations_without_their_memory_are_not_taken_over(cuda: Any, make_arena: Any) -> None:
    before = make_arena()
    blocks = [before.find(allocate(before, size)) for size in (20 * MIB, 20 * MIB)]
    first, second = (before.share(chunk)[1] for chunk in before.chunks())
    chunks = before.chunks()
    before.close()
    for descriptors in (
        {chunks[0]: first},
        {chunks[0]: first, Chunk(chunks[1].address, 2 * CHUNK): second},
        {chunks[0]: first, chunks[1]: -1},
    ):
        arena = make_arena()
        assert arena.adopt(blocks, descriptors) == INVALID_VALUE
        arena.close()
    os.close(first)
    os.close(second)


def test_whoever_has_a_descriptor_is_told_before_memory_is_given_up(
    cuda: Any, make_arena: Any
) -> None:
    given_up = []

    def note(chunk: Chunk) -> None:
        given_up.append((chunk, int(cuda.cuMemGetInfo()[1])))

    arena = make_arena(on_unmap=note)
    small, large = allocate(arena, MIB), allocate(arena, 300 * MIB)
    chunks = arena.chunks()
    for address in (small, large):
        arena.release(address)
    before = free_bytes(cuda, arena) - arena.reclaimable
    # What is more than is kept goes at once, the rest when there is need.
    assert [chunk for chunk, _ in given_up] == [chunks[1]]
    arena.reclaim()
    assert given_up[1] == (chunks[0], before)
    assert free_bytes(cuda, arena) == DEVICE
