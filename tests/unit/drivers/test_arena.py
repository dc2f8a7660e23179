"""Memory at chosen addresses: on the emulated device, whose kernels fault where none is mapped."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.device_memory import DEVICE, MIB, allocate, fill, free_bytes, word
from helpers.gate import Gate

from outlast.errors import ConfigError, RestoreFailed
from outlast.server.drivers.arena import KEPT, Arena
from outlast.server.drivers.placement import CHUNK, GRANULE

INVALID_VALUE, OUT_OF_MEMORY, NOT_READY = 1, 2, 600


class Failing:
    """A device of which some calls fail when told to."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        #: Call -> results of its next uses; 0 lets one through.
        self.results: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._cuda, name)
        planned = self.results.get(name)
        if not planned:
            return real

        def call(*args: Any) -> Any:
            code = planned.pop(0)
            return (code, None) if code else real(*args)

        return call


# -- memory ------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 512, 2 * MIB, 20 * MIB, 32 * MIB, 100 * MIB + 1])
def test_memory_is_zero_at_first_and_usable_to_its_last_byte(
    cuda: Any, arena: Arena, size: int
) -> None:
    address = allocate(arena, size)
    back = bytearray(b"\xff") * size
    assert cuda.cuMemcpyDtoH(back, address, size)[0] == 0
    assert not any(back)
    fill(cuda, address, size, 7)
    assert cuda.cuMemcpyDtoH(back, address, size)[0] == 0
    assert back == b"\x07" * size
    assert (arena.find(address + size - 1), arena.find(address + size)) == ((address, size), None)
    assert arena.allocations() == [(address, size)]


def test_small_allocations_share_chunks_and_may_lie_across_two(cuda: Any, arena: Arena) -> None:
    blocks = [allocate(arena, 20 * MIB) for _ in range(8)]
    assert arena.mapped == 5 * CHUNK
    fill(cuda, blocks[1], 20 * MIB, 3)
    edge = blocks[0] // CHUNK * CHUNK + CHUNK
    assert blocks[1] < edge < blocks[2]
    assert word(cuda, edge - 2) == 0x03030303
    assert free_bytes(cuda, arena) == DEVICE - 5 * CHUNK


def test_a_large_allocation_is_given_up_whole_and_counts_as_free_at_once(
    cuda: Any, arena: Arena
) -> None:
    address = allocate(arena, 300 * MIB)
    assert free_bytes(cuda, arena) == DEVICE - 300 * MIB
    assert arena.release(address) == 0
    # More than what may stay mapped.
    assert (arena.reclaimable, cuda.cuMemGetInfo()[1]) == (0, DEVICE)


def test_empty_chunks_stay_mapped_up_to_a_limit_and_are_used_again(cuda: Any, arena: Arena) -> None:
    blocks = [allocate(arena, CHUNK // 2) for _ in range(2 * KEPT // CHUNK + 8)]
    for address in blocks:
        assert arena.release(address) == 0
    assert arena.reclaimable == arena.mapped == KEPT
    assert free_bytes(cuda, arena) == DEVICE
    assert [allocate(arena, CHUNK // 2) for _ in blocks] == blocks
    assert arena.reclaimable == 0


@pytest.mark.parametrize("address", [0, 512])
def test_what_is_no_allocation_cannot_be_released(arena: Arena, address: int) -> None:
    first = allocate(arena, 4096)
    assert arena.release(first + address if address else 0) == INVALID_VALUE
    assert arena.release(first) == 0
    assert arena.release(first) == INVALID_VALUE


@pytest.mark.parametrize("size", [0, -1])
def test_no_bytes_cannot_be_allocated(arena: Arena, size: int) -> None:
    assert arena.allocate(size) == (INVALID_VALUE, 0)


def test_closing_gives_memory_and_addresses_back(cuda: Any, make_arena: Any) -> None:
    arena = make_arena()
    for size in (1, 20 * MIB, 40 * MIB):
        arena.release(allocate(arena, size))
        allocate(arena, size)
    arena.close()
    assert cuda.cuMemGetInfo() == (0, DEVICE, DEVICE)
    make_arena().close()


# -- running out -------------------------------------------------------------


def test_memory_runs_out_and_a_free_makes_room(cuda: Any, arena: Arena) -> None:
    blocks = [allocate(arena, 256 * MIB) for _ in range(4)]
    assert arena.allocate(32 * MIB) == (OUT_OF_MEMORY, 0)
    assert arena.allocate(1) == (OUT_OF_MEMORY, 0)
    assert arena.release(blocks[2]) == 0
    assert arena.allocate(257 * MIB) == (OUT_OF_MEMORY, 0)
    assert allocate(arena, 256 * MIB) == blocks[2]
    assert [block.address for block in arena.allocations()] == blocks


def test_empty_chunks_are_given_up_before_memory_runs_out(cuda: Any, arena: Arena) -> None:
    for address in [allocate(arena, 16 * MIB) for _ in range(10)]:
        arena.release(address)
    assert arena.reclaimable == 5 * CHUNK
    fill(cuda, allocate(arena, DEVICE), 4, 1)
    assert (arena.reclaimable, free_bytes(cuda, arena)) == (0, 0)


def test_holes_in_chunks_serve_small_requests_only_and_are_not_called_free(
    cuda: Any, arena: Arena
) -> None:
    blocks = [allocate(arena, 16 * MIB) for _ in range(DEVICE // (16 * MIB))]
    for address in blocks[::2]:
        arena.release(address)
    assert free_bytes(cuda, arena) == 0
    assert arena.allocate(32 * MIB) == (OUT_OF_MEMORY, 0)
    assert [allocate(arena, 16 * MIB) for _ in blocks[::2]] == blocks[::2]
    assert arena.allocate(512) == (OUT_OF_MEMORY, 0)


def test_a_request_that_fails_leaves_nothing_behind(cuda: Any, make_arena: Any) -> None:
    calls = Failing(cuda)
    arena = make_arena(calls)
    first = allocate(arena, 20 * MIB)
    for name, results, code in (
        ("cuMemCreate", [0, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY], OUT_OF_MEMORY),
        ("cuMemCreate", [304], 304),
        ("cuMemMap", [INVALID_VALUE], INVALID_VALUE),
        ("cuMemSetAccess", [0, 700], 700),
    ):
        calls.results = {name: results}
        # Across two chunks that are not there yet.
        assert arena.allocate(31 * MIB, first + 40 * MIB) == (code, 0)
        calls.results = {}
        assert arena.allocations() == [(first, 20 * MIB)]
        assert free_bytes(cuda, arena) == DEVICE - CHUNK
        arena.reclaim()
    assert allocate(arena, 31 * MIB, first + 40 * MIB) == first + 40 * MIB
    fill(cuda, first + 40 * MIB, 31 * MIB, 1)
    arena.close()
    assert cuda.cuMemGetInfo()[1] == DEVICE


# -- work that is not done ---------------------------------------------------


@pytest.mark.parametrize("at", [None, 512])
def test_reused_memory_is_ordered_behind_the_work_before_its_free_without_waiting(
    cuda: Any, arena: Arena, fences: Any, at: int | None
) -> None:
    gate = Gate(cuda)
    first, second = cuda.cuStreamCreate(1)[1], cuda.cuStreamCreate(1)[1]
    address = allocate(arena, 2000)
    used = address + (at or 0)
    gate.store_behind(used, 1, first)
    behind = cuda.ticket()
    assert arena.release(address) == 0
    assert allocate(arena, 600, used if at else None) == used
    assert (fences.ordered, fences.waited) == ([behind], [])
    assert cuda.cuMemsetD32Async(used, 2, 1, second)[0] == 0
    assert cuda.cuStreamQuery(first)[0] == NOT_READY
    gate.open()
    assert word(cuda, used) == 2


def test_what_follows_one_free_follows_those_before_it_too(
    cuda: Any, arena: Arena, fences: Any
) -> None:
    gate = Gate(cuda)
    blocks = [allocate(arena, 512) for _ in range(3)]
    for address in blocks:
        gate.store_behind(address, 1)
        arena.release(address)
    newest = cuda.ticket()
    assert [allocate(arena, 512, address) for address in reversed(blocks)] == blocks[::-1]
    assert fences.ordered == [newest]
    gate.open()


def test_memory_that_no_pending_work_used_is_not_ordered(
    cuda: Any, arena: Arena, fences: Any
) -> None:
    gate = Gate(cuda)
    idle, busy = allocate(arena, 512), allocate(arena, 512)
    arena.release(idle)
    assert cuda.cuCtxSynchronize()[0] == 0
    gate.store_behind(busy, 1)
    arena.release(busy)
    assert allocate(arena, 512) == idle
    allocate(arena, 512, busy + 512)
    assert fences.ordered == []
    gate.open()
    assert cuda.cuCtxSynchronize()[0] == 0
    assert allocate(arena, 512) == busy
    assert fences.ordered == []


def test_a_smaller_number_for_what_is_left_of_earlier_work_confuses_nothing(
    make_arena: Any, monkeypatch: pytest.MonkeyPatch, fences: Any
) -> None:
    arena, finished = make_arena(), False
    numbers = iter([22, 12, 30, 30, 0])
    monkeypatch.setattr(fences, "fence", lambda: next(numbers))
    monkeypatch.setattr(fences, "done", lambda fence: finished)
    first, second, third = (allocate(arena, 512) for _ in range(3))
    for address in (second, first, third):
        arena.release(address)
    assert allocate(arena, 512) == first
    assert fences.ordered == [22]
    arena.release(first)
    assert [allocate(arena, 512) for _ in range(3)] == [first, second, third]
    assert fences.ordered == [22, 30]
    finished = True
    arena.release(first)
    assert allocate(arena, 512) == first
    assert fences.ordered == [22, 30]


@pytest.mark.parametrize("size", [2 * MIB, 64 * MIB, 512 * MIB])
def test_memory_stays_mapped_while_work_uses_it(
    cuda: Any, arena: Arena, fences: Any, size: int
) -> None:
    gate = Gate(cuda)
    address = allocate(arena, size)
    gate.store_behind(address + size - 4, 1)
    assert arena.release(address) == 0
    arena.trim()
    # Elsewhere: another size would not fit the chunk that cannot go yet.
    other = allocate(arena, size + GRANULE) if size > CHUNK and size < DEVICE // 2 else 0
    assert other != address
    assert fences.waited == []
    gate.open()
    assert cuda.cuCtxSynchronize()[0] == 0
    assert cuda.fault() is None
    arena.reclaim()
    assert free_bytes(cuda, arena) == cuda.cuMemGetInfo()[1]


def test_an_allocation_waits_for_freed_memory_before_it_fails(
    cuda: Any, arena: Arena, fences: Any
) -> None:
    gate = Gate(cuda)
    address = allocate(arena, 900 * MIB)
    gate.store_behind(address, 1)
    fences.before_wait = gate.open
    arena.release(address)
    other = allocate(arena, 800 * MIB)
    assert len(fences.waited) == 1
    assert word(cuda, other) == 0
    assert cuda.fault() is None


def test_patience_ends_and_running_work_keeps_its_memory(
    cuda: Any, make_arena: Any, fences: Any
) -> None:
    arena, gate = make_arena(patience=0.01), Gate(cuda)
    address = allocate(arena, 900 * MIB)
    gate.store_behind(address, 1)
    arena.release(address)
    assert arena.allocate(800 * MIB) == (OUT_OF_MEMORY, 0)
    assert fences.waited
    gate.open()
    assert cuda.cuCtxSynchronize()[0] == 0
    assert cuda.fault() is None
    allocate(arena, 800 * MIB)


def test_a_large_range_is_cleared_of_its_former_chunk_before_another_size_goes_there(
    cuda: Any, make_arena: Any, fences: Any
) -> None:
    arena, gate = make_arena(patience=0.01), Gate(cuda)
    address = allocate(arena, 64 * MIB)
    gate.store_behind(address, 1)
    arena.release(address)
    assert arena.allocate(128 * MIB, address) == (OUT_OF_MEMORY, 0)
    gate.open()
    assert cuda.cuCtxSynchronize()[0] == 0
    assert allocate(arena, 128 * MIB, address) == address
    fill(cuda, address, 128 * MIB, 1)
    assert cuda.cuCtxSynchronize()[0] == 0


# -- the same addresses again ------------------------------------------------


def test_a_live_set_comes_back_at_its_addresses_in_any_order(cuda: Any, make_arena: Any) -> None:
    choose = random.Random(4)
    before = make_arena()
    live = [allocate(before, choose.choice([700, 5 * MIB, 20 * MIB, 33 * MIB])) for _ in range(40)]
    for address in choose.sample(live, 20):
        before.release(address)
    blocks = before.allocations()
    next_ones = [allocate(before, size) for size in (MIB, 9 * MIB)]
    before.close()
    after = make_arena()
    choose.shuffle(blocks)
    for number, (address, size) in enumerate(blocks):
        assert allocate(after, size, address) == address
        fill(cuda, address, size, number)
    for number, (address, size) in enumerate(blocks):
        assert word(cuda, address) == number * 0x01010101
        assert word(cuda, address + size - 4) == number * 0x01010101
    assert after.allocations() == sorted(blocks)
    assert [allocate(after, size) for size in (MIB, 9 * MIB)] == next_ones


def test_an_address_that_is_taken_or_impossible_is_refused(arena: Arena) -> None:
    address = allocate(arena, 4096)
    for at in (address, address + 512, address + 5, address - 512, 0, 1 << 62):
        assert arena.allocate(600, at) == (OUT_OF_MEMORY, 0)
    assert arena.allocations() == [(address, 4096)]


@pytest.mark.parametrize("first", ["arena", "allocation"])
def test_a_base_that_is_taken_is_a_typed_error_and_nothing_stays_reserved(
    cuda: Any, make_arena: Any, first: str
) -> None:
    base = cuda.devices()[0].arena_base + GRANULE
    taken = make_arena(base=base, size=2 * CHUNK) if first == "arena" else cuda.cuMemAlloc(4096)[1]
    for _ in range(3):
        with pytest.raises(RestoreFailed, match=f"{base:#x}"):
            make_arena(base=base, size=8 * CHUNK)
    if first == "arena":
        taken.close()
    else:
        cuda.cuMemFree(taken)
    make_arena(base=base, size=8 * CHUNK)


def test_a_reservation_that_fails_is_a_typed_error(make_arena: Any) -> None:
    with pytest.raises(RestoreFailed, match="OUT_OF_MEMORY"):
        make_arena(size=1 << 44)


def test_a_device_with_larger_granules_is_refused(cuda: Any, make_arena: Any) -> None:
    calls = SimpleNamespace(
        **{name: getattr(cuda, name) for name in dir(cuda) if name.startswith(("cu", "CU"))}
    )
    calls.cuMemGetAllocationGranularity = lambda properties, option: (0, 4 << 20)
    with pytest.raises(ConfigError):
        make_arena(calls)


def test_the_structures_of_the_cuda_bindings_serve_as_well(cuda: Any, make_arena: Any) -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    names = [name for name in dir(bindings) if name.startswith("CU")]
    calls = SimpleNamespace(
        **{name: getattr(cuda, name) for name in dir(cuda) if name.startswith("cu")},
        **{name: getattr(bindings, name) for name in names},
    )
    arena = make_arena(calls)
    address = allocate(arena, 40 * MIB)
    fill(cuda, address, 40 * MIB, 5)
    assert word(cuda, address) == 0x05050505
    arena.close()
