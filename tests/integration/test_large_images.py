"""Module images longer than a frame travel in pieces, and are there after a restart."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.kernels import PTX, begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session.schema import MAX_FRAME
from outlast.shim import driver
from outlast.shim.link import SessionLink


@pytest.fixture(params=["direct", "relayed"])
def link(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[SessionLink]:
    with driving(server.endpoint, tmp_path, relay=request.param == "relayed") as link:
        begin()
        yield link


def image(size: int) -> bytes:
    """Return an image of exactly ``size`` bytes."""
    return PTX.encode() + b"// " + b"x" * (size - len(PTX) - 4) + b"\n"


@pytest.mark.parametrize("size", [MAX_FRAME, MAX_FRAME + 1, 3 * MAX_FRAME + 17])
def test_an_image_longer_than_a_frame_loads_and_survives_its_worker(link, server, size):
    module = check(driver.cuModuleLoadData(image(size)))
    function = check(driver.cuModuleGetFunction(module, b"increment"))
    address = check(driver.cuMemAlloc(4))
    check(driver.cuMemsetD32(address, 5, 1))
    before = link.reconnects
    server.kill_workers()
    assert_eventually(lambda: link.reconnects > before, "the session is back")
    parameters = ((address,), (ctypes.c_void_p,))
    check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0))
    out = np.zeros(1, np.int32)
    check(driver.cuMemcpyDtoH(out.ctypes.data, address, 4))
    assert out[0] == 6


def test_a_long_image_that_cannot_be_parsed_is_refused_and_forgotten(link):
    garbage = b".version 8.0\n.target sm_80\n" + b"x " * MAX_FRAME
    assert driver.cuModuleLoadData(garbage)[0] == 218
    check(driver.cuModuleLoadData(PTX.encode()))
