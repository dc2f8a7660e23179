"""Limits of contexts are part of a session."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.life import CONTEXT, Life

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.cuda_types import CUlimit
from outlast.errors import ReplayDiverged
from outlast.server.calls.contexts import ctx_get_limit
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.session import wire
from outlast.session.operations import Op

STACK, SHMEM = int(CUlimit.CU_LIMIT_STACK_SIZE), int(CUlimit.CU_LIMIT_SHMEM_SIZE)


def limit_of(life: Life) -> Any:
    result, data = ctx_get_limit(life.executor, (1, STACK))
    assert result == 0
    return wire.unpack_reply(Op.CTX_GET_LIMIT, data)[0]


def test_a_limit_comes_back_with_its_context_and_goes_with_a_reset() -> None:
    provider = MemoryProvider()
    driver = EmulatedDriver(memory=64 << 20)
    life = Life(provider, driver)
    life.begin()
    before = limit_of(life)
    life.do(wire.pack_record(Op.CTX_SET_LIMIT, STACK, 4096))
    life.do(wire.pack_record(Op.CTX_SET_LIMIT, STACK, 8192))
    assert limit_of(life) == 8192
    life.host.acknowledge(life.host.applied)
    stored = life.save()
    driver.close()

    driver = EmulatedDriver(memory=64 << 20)
    again = Life(provider, driver)
    again.restore(stored)
    driver.cuCtxSetCurrent(again.executor.handles.real["context"][CONTEXT])
    assert limit_of(again) == 8192
    again.do(wire.pack_record(Op.PRIMARY_RESET, 0))
    assert limit_of(again) == before
    driver.close()


def test_a_limit_that_a_device_does_not_have_is_refused() -> None:
    driver = EmulatedDriver(memory=64 << 20)
    life = Life(MemoryProvider(), driver)
    life.begin()
    record = wire.pack_record(Op.CTX_SET_LIMIT, SHMEM, 1)
    life.do(record)
    assert ctx_get_limit(life.executor, (1, SHMEM)) == (215, b"")
    imposed = wire.pack_record(Op.OUTCOME, life.host.applied + 1, 0, 1)
    with pytest.raises(ReplayDiverged, match="cannot be set again"):
        life.executor.run(life.host.applied + 1, 1, 0, imposed + record, [])
    driver.close()
