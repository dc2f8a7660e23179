"""Memory of a GPU in pieces to a store and back, while its session stands still."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.life import IDENTITY, Life

from outlast.checkpoint_providers import pieces
from outlast.checkpoint_providers.directory import DirectoryProvider
from outlast.server.drivers.cuda import CudaDriver
from outlast.server.stillness import Stillness
from outlast.session import wire
from outlast.session.operations import Op

pytestmark = [pytest.mark.gpu, pytest.mark.whole_device]

#: Not where a session's server would put its memory: both may run on this machine.
BASE = 0x1200_0000_0000
PIECE = pieces.PIECE
#: More than all pieces that are in memory at once, and sizes that end within a chunk.
SIZES = (5 * PIECE + 12, 3 << 20, PIECE + 4, 8)


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    opened = CudaDriver(base=BASE)
    yield opened
    assert opened.fault() is None
    gc.collect()  # lives are cycles, with answers in memory that is given back now
    opened.close()


def pattern(address: int, size: int) -> memoryview:
    """Return bytes of which no two pieces are alike."""
    return np.random.default_rng(address).integers(0, 256, size, np.uint8).data


@pytest.mark.parametrize("hold", [0, 2 * PIECE])
def test_regions_of_any_size_come_back_through_a_few_pieces(
    driver: CudaDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: int
) -> None:
    taken: list[int] = []
    real = pieces.memory

    def memory(size: int) -> memoryview:
        taken.append(size)
        return real(size)

    monkeypatch.setattr(pieces, "memory", memory)
    life = Life(DirectoryProvider(tmp_path), driver)
    life.begin()
    life.do(*(wire.pack_record(Op.MEM_ALLOC, size) for size in SIZES))
    filled = [a for a in life.executor.allocations.values() if a.size in SIZES]
    for allocation in filled:
        data = pattern(allocation.address, allocation.size)
        assert driver.enqueue_write(allocation.address, data, 0) == 0
    assert life.executor.idle(30.0)
    ended: list[bool] = []
    still = Stillness(life.host, 30.0, lambda: ended.append(True))

    snapshot = life.checkpointer.snapshot(
        IDENTITY, 1, life.host.cut(), copy=False, still=still, hold=hold
    )
    stored = life.checkpointer.save(snapshot)
    life.end()
    again = Life(life.provider, driver)
    again.restore(stored)

    assert ended == [True]
    assert still.read >= sum(SIZES)
    assert max(taken) <= max(PIECE, hold)
    for allocation in filled:
        found = again.read(allocation.address, allocation.size)
        assert found == pattern(allocation.address, allocation.size)
    again.end()
