"""What is set of contexts, streams and threads is theirs, and gone when they begin anew."""

from __future__ import annotations

import threading

import pytest
from helpers.fake_link import image

from outlast.session.operations import Op
from outlast.shim import driver
from outlast.shim.driver import CUfunc_cache, CUlaunchAttributeID, CUlimit, CUstreamCaptureMode

INVALID_VALUE, INVALID_CONTEXT, UNSUPPORTED_LIMIT = 1, 201, 215
STACK = CUlimit.CU_LIMIT_STACK_SIZE
PRIORITY = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY


def test_a_limit_is_of_its_context_and_asked_for_once(link, context):
    assert driver.cuCtxGetLimit(STACK) == driver.cuCtxGetLimit(STACK) == (0, 1024)
    assert len(link.of(Op.CTX_GET_LIMIT)) == 1
    assert driver.cuCtxSetLimit(STACK, 4096) == (0,)
    assert driver.cuCtxGetLimit(STACK) == (0, 4096)
    other = driver.cuCtxCreate(None, 0, 0)[1]
    assert driver.cuCtxGetLimit(STACK) == (0, 1024)
    assert driver.cuCtxDestroy(other) == (0,)
    assert driver.cuCtxGetLimit(STACK) == (0, 4096)
    assert driver.cuCtxGetLimit(99) == (UNSUPPORTED_LIMIT, None)
    assert driver.cuCtxSetLimit(STACK, -1) == (INVALID_VALUE,)
    link.fail_next[Op.CTX_SET_LIMIT] = UNSUPPORTED_LIMIT
    assert driver.cuCtxSetLimit(CUlimit.CU_LIMIT_CIG_ENABLED, 1) == (UNSUPPORTED_LIMIT,)


def test_a_reset_forgets_what_was_set_and_makes_another_context_of_it(link, context):
    identity = driver.cuCtxGetId(context)[1]
    assert driver.cuCtxGetId(0) == (0, identity)
    driver.cuCtxSetCacheConfig(CUfunc_cache.CU_FUNC_CACHE_PREFER_L1)
    assert driver.cuCtxGetCacheConfig() == (0, CUfunc_cache.CU_FUNC_CACHE_PREFER_L1)
    assert driver.cuDevicePrimaryCtxReset(0) == (0,)
    assert driver.cuCtxGetCacheConfig() == (0, CUfunc_cache.CU_FUNC_CACHE_PREFER_NONE)
    assert driver.cuCtxGetId(context)[1] not in (identity, None)
    assert driver.cuCtxSetCacheConfig(9) == (INVALID_VALUE,)


def test_flags_of_contexts_can_be_changed(link, context):
    assert driver.cuCtxSetFlags(4) == (0,)
    assert driver.cuCtxGetFlags() == (0, 4)
    assert driver.cuDevicePrimaryCtxSetFlags(1, 2) == (0,)
    assert driver.cuDevicePrimaryCtxGetState(1) == (0, 2, 0)
    assert driver.cuDevicePrimaryCtxSetFlags(1, 3) == driver.cuCtxSetFlags(-1) == (INVALID_VALUE,)


def test_wishes_change_nothing_and_travel_nowhere(link, context):
    _, module = driver.cuModuleLoadData(image(("k", [[0, 8], [8, 4]])))
    _, kernel = driver.cuModuleGetFunction(module, b"k")
    before = len(link.calls)
    assert driver.cuCtxGetSharedMemConfig() == (0, 1)
    assert driver.cuCtxSetSharedMemConfig(2) == driver.cuFuncSetSharedMemConfig(kernel, 2) == (0,)
    assert driver.cuFuncSetCacheConfig(kernel, 1) == driver.cuCtxResetPersistingL2Cache() == (0,)
    assert driver.cuFuncSetCacheConfig(kernel, 9) == (INVALID_VALUE,)
    assert driver.cuProfilerStart() == driver.cuProfilerStop() == (0,)
    assert driver.cuFuncGetParamCount(kernel) == (0, 2)
    assert len(link.calls) == before


def test_streams_have_ids_devices_and_attributes(link, context):
    first, second = driver.cuStreamCreate(0)[1], driver.cuStreamCreateWithPriority(0, -2)[1]
    ids = {driver.cuStreamGetId(stream)[1] for stream in (0, 2, first, second)}
    assert len(ids) == 4
    assert driver.cuStreamGetId(1) == driver.cuStreamGetId(0)
    assert driver.cuStreamGetDevice(first) == (0, 0)
    assert driver.cuStreamGetAttribute(second, PRIORITY) == (0, -2)
    assert driver.cuStreamSetAttribute(first, PRIORITY, -1) == (0,)
    assert driver.cuStreamCopyAttributes(second, first) == (0,)
    assert driver.cuStreamGetAttribute(second, PRIORITY) == (0, -1)
    cluster = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert driver.cuStreamSetAttribute(first, cluster, 1) == (INVALID_VALUE,)
    assert driver.cuStreamGetCaptureInfo(first) == (0, 0, 0, 0, [], [], 0)
    assert driver.cuStreamGetId(99) == (400, None)


def test_the_mode_of_captures_is_each_threads_own(link, context):
    relaxed = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    exchange = driver.cuThreadExchangeStreamCaptureMode
    assert exchange(relaxed) == (0, CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    others = []
    thread = threading.Thread(target=lambda: others.append(exchange(1)))
    thread.start()
    thread.join()
    assert others == [(0, CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)]
    assert exchange(0) == (0, relaxed)
    assert exchange(7) == (INVALID_VALUE, None)


def test_devices_are_found_by_their_place_on_the_bus(link, context):
    result, name = driver.cuDeviceGetPCIBusId(13, 0)
    assert (result, name) == (0, b"0000:3B:00.0\0")
    assert driver.cuDeviceGetPCIBusId(12, 0) == (INVALID_VALUE, None)
    for text in (name, "3b:00", "0000:3B:00", b"00000000:3b:00.0"):
        assert driver.cuDeviceGetByPCIBusId(text) == (0, 0)
    assert driver.cuDeviceGetByPCIBusId("3c:00.0") == (101, None)
    assert driver.cuDeviceGetByPCIBusId("rubbish") == (INVALID_VALUE, None)
    assert driver.cuDeviceGetLuid(0) == (801, None, None)


def test_copies_of_an_allocation_may_be_asked_to_be_synchronous(link, context):
    _, address = driver.cuMemAlloc(16)
    name = driver.CUpointer_attribute
    sync = name.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    assert driver.cuPointerSetAttribute(1, sync, address) == (0,)
    assert driver.cuPointerSetAttribute(1, sync, 16) == (INVALID_VALUE,)
    other = name.CU_POINTER_ATTRIBUTE_CONTEXT
    assert driver.cuPointerSetAttribute(1, other, address) == (INVALID_VALUE,)


@pytest.mark.parametrize(
    "call", ["cuCtxGetCacheConfig", "cuProfilerStart", "cuCtxGetSharedMemConfig"]
)
def test_without_a_context_there_is_nothing_to_set(link, call):
    driver.cuInit(0)
    assert getattr(driver, call)()[0] == INVALID_CONTEXT
