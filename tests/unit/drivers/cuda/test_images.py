"""Images on the cuda device, with the emulated device in the place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.emulated_bindings import EmulatedBindings
from helpers.fatbins import sample

from outlast.server.drivers.base import ParameterInfo
from outlast.server.drivers.cuda import CudaDriver

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1E00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 32 << 30


@pytest.fixture(scope="module")
def driver() -> Iterator[CudaDriver]:
    bindings = EmulatedBindings(base=DEVICE, arena_size=RANGE, memory=1 << 30)
    driver = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
    yield driver
    driver.close()
    bindings.close()


def test_an_image_is_described_where_no_context_is_current_and_leaves_nothing(
    driver: CudaDriver,
) -> None:
    before = driver.cuda.cuMemGetInfo()
    result, info = driver.describe_image(sample("speed"))
    assert result == 0
    assert info is not None
    assert [f.name for f in info.functions] == ["which"]
    assert info.functions[0].parameters == (ParameterInfo(0, 8),)
    assert [(g.name, g.address, g.size) for g in info.globals] == [("scale", 0, 4)]
    assert driver.describe_image(sample("cubin")) == (209, None)
    assert driver.cuda.cuMemGetInfo() == before
    assert driver.regions() == []


def test_variables_of_packed_fatbins_are_part_of_the_state(driver: CudaDriver) -> None:
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    assert driver.cuCtxSetCurrent(context) == (0,)
    result, module = driver.cuModuleLoadData(sample("size"))
    assert result == 0
    assert [(r.kind, r.size) for r in driver.regions()] == [("global", 4)]
    assert driver.cuModuleUnload(module) == (0,)
    assert driver.regions() == []
