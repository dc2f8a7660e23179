"""Devices that use each other's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ILLEGAL_ADDRESS, UNSUPPORTED, ALREADY, NOT_ENABLED = 700, 217, 704, 705
INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT = 1, 101, 201


class Pair:
    """Two devices; the second is current."""

    def __init__(self, host: Any) -> None:
        self.host, self.cuda = host, host.cuda
        self.first, self.second = (self.cuda.cuDevicePrimaryCtxRetain(n)[1] for n in range(2))
        self.enter(self.first)
        self.near = self.word(7)
        self.enter(self.second)
        self.own = self.word(0)
        self.copy = host.assemble(
            "ld.param.u64 %d0, [from]; ld.global.u32 %r0, [%d0]; st.global.u32 [%o], %r0;",
            ".param .u64 out, .param .u64 from",
        )

    def enter(self, context: int) -> None:
        assert self.cuda.cuCtxSetCurrent(context)[0] == 0

    def word(self, value: int) -> int:
        return int(self.host.put(np.array([value], np.uint32)))

    def read(self, source: int) -> int:
        """Have the second device read a word; return the result of waiting for it."""
        self.enter(self.second)
        assert self.host.launch(self.copy, 1, 1, self.own, source) == 0
        return int(self.cuda.cuCtxSynchronize()[0])

    def got(self) -> int:
        return int(self.host.get(self.own, np.zeros(1, np.uint32))[0])

    def enable(self) -> int:
        return int(self.cuda.cuCtxEnablePeerAccess(self.first, 0)[0])


@pytest.fixture
def pair(make_host: Any) -> Pair:
    return Pair(make_host(devices=2))


def test_a_device_cannot_use_anothers_memory_at_first(pair: Pair) -> None:
    assert pair.read(pair.near) == ILLEGAL_ADDRESS


def test_a_device_that_was_let_uses_what_is_there_and_what_comes(pair: Pair) -> None:
    assert pair.enable() == 0
    assert pair.read(pair.near) == 0
    assert pair.got() == 7
    pair.enter(pair.first)
    later = pair.word(8)
    assert pair.read(later) == 0
    assert pair.got() == 8
    pair.enter(pair.first)
    assert pair.cuda.cuMemFree(later)[0] == 0
    assert pair.read(later) == ILLEGAL_ADDRESS


def test_access_goes_one_way(pair: Pair) -> None:
    assert pair.enable() == 0
    pair.enter(pair.first)
    kernel = pair.host.assemble("mov.u32 %r0, 5; st.global.u32 [%o], %r0;")
    assert pair.host.launch(kernel, 1, 1, pair.own) == 0
    assert pair.cuda.cuCtxSynchronize()[0] == ILLEGAL_ADDRESS


def test_access_that_is_taken_away_is_gone_behind_the_work_so_far(pair: Pair) -> None:
    assert pair.enable() == 0
    pair.host.launch(pair.copy, 1, 1, pair.own, pair.near)
    assert pair.cuda.cuCtxDisablePeerAccess(pair.first) == (0,)
    assert pair.cuda.cuCtxSynchronize()[0] == 0
    assert pair.got() == 7
    assert pair.read(pair.near) == ILLEGAL_ADDRESS


def test_access_lasts_until_the_last_context_has_given_it_back(pair: Pair) -> None:
    assert pair.enable() == 0
    _, other = pair.cuda.cuCtxCreate(None, 0, 1)
    assert pair.enable() == 0
    assert pair.cuda.cuCtxDestroy(other) == (0,)
    assert pair.read(pair.near) == 0
    pair.cuda.cuDevicePrimaryCtxReset(0)
    assert pair.cuda.cuCtxDisablePeerAccess(pair.first) == (NOT_ENABLED,)


def test_what_cannot_be_is_refused(pair: Pair) -> None:
    cuda = pair.cuda
    assert cuda.cuDeviceCanAccessPeer(0, 1) == (0, 1)
    assert cuda.cuDeviceCanAccessPeer(0, 0) == (0, 0)
    assert cuda.cuDeviceGetP2PAttribute(2, 0, 1) == (0, 1)
    assert cuda.cuDeviceGetP2PAttribute(2, 0, 0) == (INVALID_DEVICE, None)
    assert cuda.cuDeviceGetP2PAttribute(77, 0, 1) == (INVALID_VALUE, None)
    assert cuda.cuCtxDisablePeerAccess(pair.first) == (NOT_ENABLED,)
    assert cuda.cuCtxEnablePeerAccess(pair.second, 0) == (INVALID_CONTEXT,)
    assert cuda.cuCtxEnablePeerAccess(12345, 0) == (INVALID_CONTEXT,)
    assert cuda.cuCtxEnablePeerAccess(pair.first, 1) == (INVALID_VALUE,)
    assert pair.enable() == 0
    assert pair.enable() == ALREADY
    cuda.cuCtxCreate(None, 0, 1)
    assert cuda.cuCtxEnablePeerAccess(pair.second, 0) == (UNSUPPORTED,)


def test_a_table_tells_what_each_device_can_do(pair: Pair) -> None:
    first, second = pair.cuda.devices()
    assert list(first.peers) == [1]
    assert list(second.peers) == [0]
    assert first.peers[1][2] == 1
