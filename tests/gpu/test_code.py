"""Code on the cuda device: fatbins, links, occupancy, cooperative launches; and rows of memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import ptx
from helpers.fatbins import CHOSEN, sample

from outlast.cuda_types import CUlimit
from outlast.server.drivers.base import ParameterInfo, Rows
from outlast.server.drivers.cuda import CudaDriver
from outlast.session.link_inputs import LinkInput

pytestmark = pytest.mark.gpu

#: Not where a session's server would put its memory: both may run on this machine.
BASE = 0x1300_0000_0000
ENOUGH = 20.0  # seconds
PTX, FATBIN = 1, 2


@pytest.fixture(scope="module")
def driver() -> Iterator[CudaDriver]:
    driver = CudaDriver(base=BASE)
    error, context = driver.cuDevicePrimaryCtxRetain(0)
    assert not error
    assert driver.cuCtxSetCurrent(context) == (0,)
    yield driver
    driver.close()


def made(answer: tuple[int, int]) -> int:
    assert answer[0] == 0, answer
    return int(answer[1])


def read(driver: CudaDriver, address: int, size: int) -> bytes:
    error, data = driver.enqueue_read(address, size, 0)
    assert not error
    assert driver.wait(driver.ticket(0), ENOUGH)
    return bytes(data)


@pytest.mark.parametrize("name", ["none", "speed", "size", "all-speed"])
def test_a_fatbin_runs_and_its_variables_are_found(driver: CudaDriver, name: str) -> None:
    module = made(driver.cuModuleLoadData(sample(name)))
    assert [g.name for g in driver.module_info(module).globals] == ["scale"]
    which = made(driver.cuModuleGetFunction(module, b"which"))
    target = made(driver.cuMemAlloc(8))
    parameters = target.to_bytes(8, "little")
    assert driver.launch_packed(which, 0, 1, 1, 1, 1, 1, 1, 0, parameters) == 0
    wanted = CHOSEN if name != "all-speed" else 80
    assert int.from_bytes(read(driver, target, 4), "little") == wanted
    assert driver.cuModuleUnload(module) == (0,)


def test_code_for_another_gpu_is_no_binary_for_this_one(driver: CudaDriver) -> None:
    assert driver.cuModuleLoadData(sample("cubin"))[0] == 209


def test_an_image_is_described_without_staying(driver: CudaDriver) -> None:
    before = driver.regions()
    error, info = driver.describe_image(sample("size"))
    assert error == 0
    assert info is not None
    assert [f.name for f in info.functions] == ["which"]
    assert info.functions[0].parameters == (ParameterInfo(0, 8),)
    assert [(g.name, g.address, g.size) for g in info.globals] == [("scale", 0, 4)]
    assert driver.regions() == before


def test_inputs_are_linked_to_an_image_that_loads(driver: CudaDriver) -> None:
    inputs = [
        LinkInput(PTX, "tape", ptx.TAPE.encode()),
        LinkInput(FATBIN, "which", sample("speed")),
    ]
    error, image = driver.link(inputs)
    assert error == 0
    assert image.startswith(b"\x7fELF")
    assert driver.link(inputs) == (0, image), "a link gives other bytes each time"
    module = made(driver.cuModuleLoadData(image))
    assert {f.name for f in driver.module_info(module).functions} == {"append", "nothing", "which"}
    assert driver.cuModuleUnload(module) == (0,)
    assert driver.link([LinkInput(PTX, "garbage", b"garbage")])[0] != 0


def test_occupancy_is_that_of_the_device(driver: CudaDriver) -> None:
    module = made(driver.cuModuleLoadData(ptx.TAPE.encode()))
    append = made(driver.cuModuleGetFunction(module, b"append"))
    error, blocks = driver.occupancy(append, 1024, 0, 0)
    assert (error, blocks) == (0, 2)
    error, size = driver.available_shared(append, 2, 32)
    assert (error, size) == (0, 48 << 10)


def test_a_cooperative_launch_runs(driver: CudaDriver) -> None:
    module = made(driver.cuModuleLoadData(ptx.TAPE.encode()))
    append = made(driver.cuModuleGetFunction(module, b"append"))
    target = made(driver.cuMemAlloc(8))
    assert driver.cuMemsetD8Async(target, 0, 8, 0) == (0,)
    parameters = target.to_bytes(8, "little") + (7).to_bytes(4, "little")
    for _ in range(2):
        assert driver.launch_cooperative(append, 0, (1,) * 6 + (0,), parameters) == 0
    assert int.from_bytes(read(driver, target, 8), "little") == 77
    too_many = (1 << 20, 1, 1, 1024, 1, 1, 0)
    assert driver.launch_cooperative(append, 0, too_many, parameters) == 720


def test_rows_are_filled_written_copied_and_read(driver: CudaDriver) -> None:
    first, second = made(driver.cuMemAlloc(1 << 20)), made(driver.cuMemAlloc(1 << 20))
    for address in (first, second):
        assert driver.cuMemsetD8Async(address, 0, 1 << 20, 0) == (0,)
    data = np.random.default_rng(7).integers(0, 255, (100, 700), np.uint8)
    dense, apart = Rows(100, 700, 700), Rows(100, 700, 1024)
    assert driver.write_rows(first, apart, data.tobytes(), 0) == 0
    assert driver.fill_rows(first + 4, Rows(50, 40, 1024), 10, 0x01020304, 4, 0) == 0
    data[:50, 4:44] = np.frombuffer(b"\4\3\2\1" * 10, np.uint8)
    assert driver.copy_rows(second, dense, first, apart, 0) == 0
    error, got = driver.read_rows(first, apart, 0)
    assert error == 0
    assert driver.wait(driver.ticket(0), ENOUGH)
    assert bytes(got) == data.tobytes()
    assert read(driver, second, 70_000) == data.tobytes()
    assert read(driver, first + 700, 324) == bytes(324)


def test_a_limit_is_set_and_goes_back_with_a_reset(driver: CudaDriver) -> None:
    stack = int(CUlimit.CU_LIMIT_STACK_SIZE)
    before = made(driver.cuCtxGetLimit(stack))
    assert driver.cuCtxSetLimit(stack, before + 1024) == (0,)
    assert driver.cuCtxGetLimit(stack) == (0, before + 1024)
    assert driver.cuDevicePrimaryCtxReset(0) == (0,)
    assert driver.cuCtxGetLimit(stack) == (0, before)
