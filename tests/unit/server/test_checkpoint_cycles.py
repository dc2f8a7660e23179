"""Checkpoint and restore over and over: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import pytest
from helpers.life import Footprint, Life

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.server.drivers.emulated import EmulatedDriver

MEMORY = 256 << 20  # bytes of the device
#: Cycles until Python, LLVM and the allocator have what they keep.
WARM = 10
#: How much the process may grow behind that: far less than one copy of the memory a cycle.
SLACK = 24 << 20  # bytes


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(40, id="forty"),
        pytest.param(1000, id="thousand", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_a_session_that_is_saved_and_restored_again_and_again_leaves_nothing_behind(
    cycles: int, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = MemoryProvider()
    life = Life(provider, EmulatedDriver(memory=MEMORY))
    number, before = 0, None
    try:
        life.begin()
        for turn in range(WARM + cycles):
            if turn == WARM:
                before = Footprint.take()
            life.work(turn)
            number = (number * 10 + turn % 10) % (1 << 64)
            life.check(number, turn % 251)
            stored = life.save()
            life.driver.close()
            life = Life(provider, EmulatedDriver(memory=MEMORY))
            life.restore(stored)
            life.check(number, turn % 251)
    finally:
        life.driver.close()
    after = Footprint.take()
    assert before is not None
    if cycles >= 1000:
        with capsys.disabled():
            print(f"\n{cycles} cycles: {before} before, {after} behind them")
    after.assert_no_more_than(before, SLACK)
