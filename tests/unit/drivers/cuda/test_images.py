"""Images on the cuda device, with the emulated device in the place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import ptx
from helpers.emulated_bindings import EmulatedBindings
from helpers.fatbins import sample

from outlast.server.drivers.base import ParameterInfo
from outlast.server.drivers.cuda import CudaDriver
from outlast.session.link_inputs import LinkInput

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


def test_inputs_are_linked_in_their_order_and_the_link_ends(driver: CudaDriver) -> None:
    assert driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1]) == (0,)
    inputs = [LinkInput(1, "tape", ptx.TAPE.encode()), LinkInput(2, "which", sample("size"))]
    assert driver.link(inputs) == driver.cuda.link(inputs)
    assert driver.link(inputs)[0] == 0
    assert driver.link([LinkInput(0, "cubin", b"\x7fELF")]) == (209, b"")
    assert driver.link([LinkInput(77, "what", b"?")]) == (1, b"")
    assert not driver.cuda.links


def test_cooperative_launches_and_occupancy_go_to_the_device(driver: CudaDriver) -> None:
    assert driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1]) == (0,)
    module = driver.cuModuleLoadData(sample("size"))[1]
    which = driver.cuModuleGetFunction(module, b"which")[1]
    assert driver.occupancy(which, 1024, 0, 0) == (0, 2)
    assert driver.available_shared(which, 2, 32) == (0, 48 << 10)
    assert driver.occupancy(1, 1024, 0, 0) == (400, 0)
    address = driver.cuMemAlloc(8)[1]
    parameters = int(address).to_bytes(8, "little")
    shape = (1, 1, 1, 1, 1, 1, 0)
    assert driver.launch_cooperative(which, 0, shape, parameters) == 0
    result, data = driver.enqueue_read(int(address), 4, 0)
    assert result == 0
    assert driver.wait(driver.ticket(), 30.0)
    assert int.from_bytes(data, "little") == 80
    assert driver.launch_cooperative(which, 0, shape, parameters[:4]) == 1
    assert driver.launch_cooperative(1, 0, shape, parameters) == 400
