"""Requests and replies that are lost on the way: every call is done exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.broken_link import BrokenLink, LoseOnce, Way
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess

from outlast.session.schema import Kind
from outlast.shim import driver

Arm = Callable[[], LoseOnce]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("lost") / "state") as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[BrokenLink]:
    with BrokenLink(server.endpoint) as proxy:
        yield proxy


@pytest.fixture(params=["request", "reply", "reply and server"])
def lose(
    request: pytest.FixtureRequest, server: ServerProcess, proxy: BrokenLink, tmp_path: Path
) -> Iterator[Arm]:
    """Give a session over the proxy; call the fixture to have its next message lost."""

    def restart() -> None:
        server.kill()
        server.start()

    def arm() -> LoseOnce:
        check(driver.cuCtxSynchronize())
        if request.param == "request":
            return proxy.lose_next(Way.UP, Kind.CALLS)
        then = restart if request.param == "reply and server" else lambda: None
        return proxy.lose_next(Way.DOWN, Kind.REPLIES, then)

    with driving(proxy.endpoint, tmp_path, relay=True):
        begin()
        yield arm


def memory() -> tuple[int, int]:
    result, free, total = driver.cuMemGetInfo()
    assert int(result) == 0
    return free, total


def test_an_allocation_with_a_lost_message_is_made_once(lose: Arm) -> None:
    """C3: the pointer is the original one and nothing leaks."""
    before = memory()[0]
    check(driver.cuMemAlloc(1 << 20))
    cost = before - memory()[0]
    lost = lose()
    address = check(driver.cuMemAlloc(1 << 20))
    assert lost.lost.is_set()
    assert before - memory()[0] == 2 * cost
    check(driver.cuMemsetD32(address, 7, 1 << 18))
    check(driver.cuMemFree(address))
    assert before - memory()[0] == cost


def test_a_kernel_with_a_lost_message_runs_once(lose: Arm) -> None:
    """C3: the counter is never 2."""
    counter = Counter()
    lost = lose()
    counter.increment()
    assert counter.value() == 1
    assert lost.lost.is_set()


def test_an_upload_with_a_lost_message_lands(lose: Arm) -> None:
    """C3: the bytes are there, and what comes later in the order comes later."""
    data = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    address = check(driver.cuMemAlloc(data.nbytes))
    lost = lose()
    check(driver.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
    check(driver.cuMemsetD8(address, 9, 16))
    out = np.zeros_like(data)
    check(driver.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
    assert lost.lost.is_set()
    assert (out[:16] == 9).all()
    assert np.array_equal(out[16:], data[16:])


def test_a_free_with_a_lost_message_is_no_error(lose: Arm) -> None:
    """C3: a free is never reported as a failure because it was sent twice."""
    before = memory()[0]
    address = check(driver.cuMemAlloc(1 << 20))
    lost = lose()
    check(driver.cuMemFree(address))
    check(driver.cuCtxSynchronize())
    assert lost.lost.is_set()
    assert memory()[0] == before


def test_the_end_of_a_stream_with_a_lost_message_is_no_error(lose: Arm) -> None:
    """C3: a destroy is never reported as a failure because it was sent twice."""
    stream = check(driver.cuStreamCreate(0))
    lost = lose()
    check(driver.cuStreamDestroy(stream))
    check(driver.cuCtxSynchronize())
    assert lost.lost.is_set()
    assert int(driver.cuStreamSynchronize(stream)[0]) == 400  # CUDA_ERROR_INVALID_HANDLE


def test_a_reply_right_behind_the_attachment_is_not_lost(proxy: BrokenLink, tmp_path: Path) -> None:
    """C3: what is owed comes in one burst with ATTACHED."""
    with driving(proxy.endpoint, tmp_path, relay=True):
        begin()
        counter = Counter()
        for number in range(1, 51):
            lost = proxy.lose_next(Way.DOWN, Kind.REPLIES)
            counter.increment()
            assert counter.value() == number
            assert lost.lost.is_set()
