"""The cuda device in the lives of a session, with the emulated one in place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.emulated_bindings import EmulatedBindings
from helpers.life import Life

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.server.drivers.cuda import CudaDriver

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1C00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 32 << 30
LIVES = 20


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    bindings = EmulatedBindings(base=DEVICE, arena_size=RANGE, memory=1 << 30)
    opened = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
    yield opened
    assert opened.fault() is None
    opened.close()
    bindings.close()


def test_each_life_finds_what_the_one_before_has_saved_and_the_device_stays_as_free(
    driver: CudaDriver,
) -> None:
    provider = MemoryProvider()
    life = Life(provider, driver)
    life.begin()
    number, free = 0, []
    for turn in range(LIVES):
        life.work(turn)
        number = (number * 10 + turn % 10) % (1 << 64)
        life.check(number, turn % 251)
        free.append(driver.cuMemGetInfo()[1])
        stored = life.save()
        life.end()
        life = Life(provider, driver)
        life.restore(stored)
        life.check(number, turn % 251)
    life.end()
    assert len(set(free[1:])) == 1
