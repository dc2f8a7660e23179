"""Memory of other devices: what is answered here, and what travels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fake_link import FakeLink

from outlast.session.operations import Op
from outlast.shim import driver

ALREADY, NOT_ENABLED, UNSUPPORTED = (704,), (705,), (217,)
INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT = (1,), (101,), (201,)
ACCESS = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED


@pytest.fixture
def link() -> Iterator[FakeLink]:
    """A link to three devices, of which the first two can use each other's memory."""
    fake = FakeLink(devices=3)
    driver.use_link(fake)
    yield fake
    driver.use_link(None)


@pytest.fixture
def others(context: int) -> list[int]:
    """The primary contexts of the second and the third device."""
    return [driver.cuDevicePrimaryCtxRetain(device)[1] for device in (1, 2)]


def test_who_can_use_whose_memory_is_known_here(link: FakeLink, context: int) -> None:
    before = len(link.calls)
    assert driver.cuDeviceCanAccessPeer(0, 1) == (0, 1)
    assert driver.cuDeviceCanAccessPeer(1, 0) == (0, 1)
    assert driver.cuDeviceCanAccessPeer(0, 2) == (0, 0)
    assert driver.cuDeviceCanAccessPeer(0, 0) == (0, 0)
    assert driver.cuDeviceCanAccessPeer(0, 3) == (101, None)
    assert driver.cuDeviceGetP2PAttribute(ACCESS, 0, 1) == (0, 1)
    assert driver.cuDeviceGetP2PAttribute(ACCESS, 0, 0) == (101, None)
    assert driver.cuDeviceGetP2PAttribute(ACCESS, 7, 0) == (101, None)
    assert driver.cuDeviceGetP2PAttribute(99, 0, 1) == (1, None)
    assert len(link.calls) == before


def test_access_is_had_once_and_given_back_once(
    link: FakeLink, context: int, others: list[int]
) -> None:
    peer, _ = others
    assert driver.cuCtxDisablePeerAccess(peer) == NOT_ENABLED
    assert driver.cuCtxEnablePeerAccess(peer, 0) == (0,)
    assert driver.cuCtxEnablePeerAccess(peer, 0) == ALREADY
    assert driver.cuCtxDisablePeerAccess(peer) == (0,)
    assert driver.cuCtxDisablePeerAccess(peer) == NOT_ENABLED
    assert [call[:2] for call in link.calls if "PEER" in call[0].name] == [
        (Op.PEER_ENABLE, (peer,)),
        (Op.PEER_DISABLE, (peer,)),
    ]


def test_access_that_cannot_be_is_refused(link: FakeLink, context: int, others: list[int]) -> None:
    peer, far = others
    assert driver.cuCtxEnablePeerAccess(far, 0) == UNSUPPORTED
    assert driver.cuCtxEnablePeerAccess(peer, 1) == INVALID_VALUE
    assert driver.cuCtxEnablePeerAccess(context, 0) == INVALID_CONTEXT
    assert driver.cuCtxEnablePeerAccess(5, 0) == INVALID_CONTEXT
    assert driver.cuCtxDisablePeerAccess(context) == INVALID_CONTEXT
    driver.cuCtxSetCurrent(0)
    assert driver.cuCtxEnablePeerAccess(peer, 0) == INVALID_CONTEXT
    assert not link.of(Op.PEER_ENABLE)


def test_access_that_the_device_refuses_may_be_asked_for_again(
    link: FakeLink, context: int, others: list[int]
) -> None:
    link.fail_next[Op.PEER_ENABLE] = 2
    assert driver.cuCtxEnablePeerAccess(others[0], 0) == (2,)
    assert driver.cuCtxEnablePeerAccess(others[0], 0) == (0,)


@pytest.mark.parametrize("gone", ["user", "owner"])
def test_access_goes_with_either_context(
    link: FakeLink, context: int, others: list[int], gone: str
) -> None:
    peer, _ = others
    driver.cuCtxEnablePeerAccess(peer, 0)
    device = 0 if gone == "user" else 1
    assert driver.cuDevicePrimaryCtxReset(device) == (0,)
    assert driver.cuCtxDisablePeerAccess(peer) == NOT_ENABLED
    assert driver.cuCtxEnablePeerAccess(peer, 0) == (0,)


def test_copies_go_from_one_contexts_memory_to_anothers(
    link: FakeLink, context: int, others: list[int]
) -> None:
    peer, far = others
    _, near = driver.cuMemAlloc(64)
    driver.cuCtxPushCurrent(peer)
    _, there = driver.cuMemAlloc(64)
    driver.cuCtxPopCurrent()
    _, stream = driver.cuStreamCreate(1)
    assert driver.cuMemcpyPeer(there, peer, near, context, 64) == (0,)
    assert link.calls[-1] == (Op.COPY_DTOD, (there, near, 0, 64, 3), None)
    assert driver.cuMemcpyPeerAsync(near, context, there, peer, 32, stream) == (0,)
    assert link.calls[-1] == (Op.COPY_DTOD, (near, there, stream, 32, 0), None)
    assert driver.cuMemcpyDtoD(near, there, 16) == (0,)
    for call in (
        lambda: driver.cuMemcpyPeer(there, context, near, context, 64),
        lambda: driver.cuMemcpyPeer(there, peer, near, far, 64),
        lambda: driver.cuMemcpyPeer(there, peer, near, context, 65),
        lambda: driver.cuMemcpyPeer(there, peer, near, context, -1),
    ):
        assert call() == INVALID_VALUE
    assert driver.cuMemcpyPeer(there, 5, near, context, 64) == INVALID_CONTEXT
    assert driver.cuMemcpyPeer(there, peer, near, context, 0) == (0,)
