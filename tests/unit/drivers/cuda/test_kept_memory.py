"""Memory of the cuda device with the keeper, the emulated device in place of a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.emulated_bindings import EmulatedBindings
from helpers.keeper import keeper_pids
from helpers.life import IDENTITY, Life
from helpers.server_process import assert_eventually, kill

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.server import handover
from outlast.server.deposits import Deposit
from outlast.server.drivers.cuda import CudaDriver
from outlast.server.keeper.client import Keeper
from outlast.session import wire
from outlast.session.operations import Op

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1D00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 32 << 30
MIB = 1 << 20

Make = Callable[[], tuple[Life, Deposit]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make one life behind the other, each with a device of its own at the same addresses."""
    made: list[tuple[EmulatedBindings, CudaDriver, Deposit]] = []
    starter = Keeper(tmp_path)
    starter.start(ttl=60.0)

    def end() -> None:
        while made:
            bindings, driver, deposit = made.pop()
            driver.on_give_up = None  # a worker that dies unmaps nothing
            driver.close()
            bindings.close()
            deposit.keeper.close()

    def make() -> tuple[Life, Deposit]:
        end()
        bindings = EmulatedBindings(base=DEVICE, arena_size=RANGE, memory=1 << 30)
        driver = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
        life = Life(MemoryProvider(), driver)
        made.append((bindings, driver, Deposit(Keeper(tmp_path), "train", 1, life.executor)))
        return life, made[-1][2]

    yield make
    end()
    starter.close()
    for pid in keeper_pids(tmp_path):
        kill(pid)
    assert_eventually(lambda: not keeper_pids(tmp_path), "the keeper ends")


def leave(life: Life, deposit: Deposit) -> None:
    """Seal what a life has done."""
    cut = life.host.cut()
    epoch = handover.write(life.checkpointer.snapshot(IDENTITY, 1, cut, True, shared=True))
    deposit.claim()
    assert handover.add_memory(deposit, life.driver)
    deposit.seal(cut.seq, epoch)
    os.close(epoch)


def kept(deposit: Deposit) -> int:
    """Return the bytes that the keeper has."""
    (entry,) = deposit.keeper.holdings()
    return int(entry["bytes"])


def test_what_is_left_with_the_keeper_is_the_memory_itself(make: Make) -> None:
    life, deposit = make()
    life.begin()
    number = 0
    for turn in range(4):
        life.work(turn)
        number = number * 10 + turn
        leave(life, deposit)
        seq = life.host.applied
        life, deposit = make()
        handover.take(deposit, seq, life.checkpointer)
        life.host.restored(seq, [], stored=False)
        life.check(number, turn)
        assert deposit.at_rest
        assert kept(deposit) == 32 * MIB


def test_memory_that_is_freed_goes_from_the_keeper_when_it_is_unmapped(make: Make) -> None:
    life, deposit = make()
    life.begin()
    life.do(*[wire.pack_record(Op.MEM_ALLOC, size * MIB) for size in (300, 64)])
    large, middle = sorted(life.executor.allocations)[-2:]
    assert life.executor.idle(30.0)
    leave(life, deposit)
    assert kept(deposit) == (32 + 300 + 64) * MIB
    life.do(wire.pack_record(Op.MEM_FREE, large))
    assert kept(deposit) == (32 + 64) * MIB
    life.do(wire.pack_record(Op.MEM_FREE, middle))
    assert kept(deposit) == (32 + 64) * MIB  # it is mapped still, for the next allocation
    free = life.driver.cuMemGetInfo()[1]  # type: ignore[attr-defined]
    life.do(wire.pack_record(Op.MEM_ALLOC, free // (2 * MIB) * (2 * MIB)))
    assert len(life.executor.allocations) == 3  # there was all that memory
    assert kept(deposit) == 32 * MIB


def test_what_nothing_lives_in_is_not_kept(make: Make) -> None:
    life, deposit = make()
    life.begin()
    life.do(wire.pack_record(Op.MEM_ALLOC, 64 * MIB))
    leave(life, deposit)
    life.do(wire.pack_record(Op.MEM_FREE, max(life.executor.allocations)))
    assert life.executor.idle(30.0)
    leave(life, deposit)
    assert kept(deposit) == 32 * MIB
