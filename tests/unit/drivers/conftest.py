"""An emulated device, a program on it and what an arena must know of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.server.drivers.arena import Arena
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit

#: Far from the product's address and from those of other tests.
DEVICE_BASE = 0x1A00_0000_0000
DEVICE_RANGE = 64 << 30
ARENA_BASE = DEVICE_BASE + (8 << 30)
ARENA_SIZE = 32 << 30

MakeArena = Callable[..., Arena]


class DeviceFences:
    """The work of an emulated device, which runs in the order of issue anyway."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self._driver = driver
        #: What the arena asked for.
        self.ordered: list[int] = []
        self.waited: list[int] = []
        #: Called when the arena waits, before it does.
        self.before_wait: Callable[[], None] = lambda: None

    def fence(self) -> int:
        return self._driver.ticket()

    def done(self, fence: int) -> bool:
        return self._driver.done(fence)

    def wait(self, fence: int, timeout: float) -> bool:
        self.waited.append(fence)
        self.before_wait()
        return self._driver.wait(fence, timeout)

    def order_after(self, fence: int) -> None:
        self.ordered.append(fence)


@pytest.fixture(scope="session")
def jit(tmp_path_factory: pytest.TempPathFactory) -> Jit:
    return Jit(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def cuda(jit: Jit) -> Iterator[EmulatedDriver]:
    """A device of 1 GiB whose primary context is current."""
    driver = EmulatedDriver(base=DEVICE_BASE, arena_size=DEVICE_RANGE, memory=1 << 30, jit=jit)
    assert driver.cuInit(0)[0] == 0
    assert driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])[0] == 0
    yield driver
    driver.close()


@pytest.fixture
def fences(cuda: EmulatedDriver) -> DeviceFences:
    return DeviceFences(cuda)


@pytest.fixture
def make_arena(cuda: EmulatedDriver, fences: DeviceFences) -> Iterator[MakeArena]:
    """Make arenas at the same place, each behind the end of the one before."""
    made: list[Arena] = []

    def make(calls: Any = cuda, **options: Any) -> Arena:
        options = {"base": ARENA_BASE, "size": ARENA_SIZE, "fences": fences, **options}
        made.append(Arena(calls, 0, **options))
        return made[-1]

    yield make
    for arena in made:
        arena.close()


@pytest.fixture
def arena(make_arena: MakeArena) -> Arena:
    return make_arena()
