"""Contexts: the stack of each thread, primary contexts, destruction."""

from __future__ import annotations

import threading

import pytest
from helpers.fake_link import image

from outlast.session.operations import Op
from outlast.session.schema import HANDLE_STEP, PRIMARY_CONTEXT_BASE
from outlast.shim import driver


def in_thread(function):
    """Run ``function`` in a new thread and return its value."""
    values = []
    thread = threading.Thread(target=lambda: values.append(function()))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return values[0]


def test_a_primary_context_is_a_constant_and_counts_its_retains(link, context):
    assert context == PRIMARY_CONTEXT_BASE
    assert driver.cuDevicePrimaryCtxRetain(1) == (0, PRIMARY_CONTEXT_BASE + HANDLE_STEP)
    assert driver.cuDevicePrimaryCtxGetState(1) == (0, 0, 1)
    assert driver.cuDevicePrimaryCtxRelease(1) == (0,)
    assert driver.cuDevicePrimaryCtxGetState(1) == (0, 0, 0)
    assert driver.cuDevicePrimaryCtxRelease(1) == (201,)
    assert driver.cuDevicePrimaryCtxRetain(1) == (0, PRIMARY_CONTEXT_BASE + HANDLE_STEP)


def test_reset_drops_the_objects_of_a_primary_context(link, context):
    _, address = driver.cuMemAlloc(16)
    _, stream = driver.cuStreamCreate(0)
    _, event = driver.cuEventCreate(0)
    _, module = driver.cuModuleLoadData(image(("k", [])))
    _, function = driver.cuModuleGetFunction(module, b"k")
    assert driver.cuDevicePrimaryCtxReset(0) == (0,)
    assert driver.cuCtxGetCurrent() == (0, context)
    assert driver.cuMemFree(address) == (1,)
    assert driver.cuStreamQuery(stream) == (400,)
    assert driver.cuEventQuery(event) == (400,)
    assert driver.cuModuleUnload(module) == (400,)
    assert driver.cuFuncGetAttribute(0, function) == (400, None)
    assert driver.cuMemAlloc(16)[0] == 0


def test_the_current_context_is_a_stack(link, context):
    _, second = driver.cuCtxCreate(None, 0, 1)
    assert driver.cuCtxGetCurrent() == (0, second)
    assert driver.cuCtxGetDevice() == (0, 1)
    driver.cuCtxPushCurrent(context)
    assert driver.cuCtxGetDevice() == (0, 0)
    assert driver.cuCtxPopCurrent() == (0, context)
    assert driver.cuCtxPopCurrent() == (0, second)
    assert driver.cuCtxSetCurrent(0) == (0,)
    assert driver.cuCtxGetCurrent() == (0, 0)
    assert driver.cuCtxPopCurrent() == (201, None)
    assert driver.cuCtxGetDevice() == (201, None)
    assert link.bound == 0


def test_the_link_learns_each_change_of_the_current_context(link, context):
    assert link.bound == context
    _, second = driver.cuCtxCreate(None, 0, 1)
    assert link.bound == second
    assert in_thread(lambda: link.bound) == 0
    driver.cuCtxDestroy(second)
    assert link.bound == context


def test_each_thread_has_its_own_current_context(link, context):
    assert in_thread(driver.cuCtxGetCurrent) == (0, 0)
    assert in_thread(lambda: driver.cuMemAlloc(16)) == (201, None)

    def first_call_is_a_push():
        driver.cuCtxPushCurrent(context)
        return driver.cuMemAlloc(16)[0], link.bound

    assert in_thread(first_call_is_a_push) == (0, context)


def test_calls_without_a_context_fail_with_invalid_context(link):
    driver.cuInit(0)
    assert driver.cuMemAlloc(16) == (201, None)
    assert driver.cuStreamCreate(0) == (201, None)
    assert driver.cuCtxSynchronize() == (201,)
    assert driver.cuModuleLoadData(image()) == (201, None)
    assert driver.cuMemGetInfo() == (201, None, None)
    assert driver.cuCtxGetApiVersion(0) == (201, None)
    assert not link.calls


@pytest.mark.parametrize("handle", [-1, 0x1234, 1 << 70])
def test_a_foreign_context_handle_is_invalid(handle, link, context):
    assert driver.cuCtxSetCurrent(handle) == (201,)
    assert driver.cuCtxPushCurrent(handle) == (201,)
    assert driver.cuCtxDestroy(handle) == (201,)
    assert driver.cuCtxGetApiVersion(handle) == (201, None)
    assert driver.cuCtxGetCurrent() == (0, context)


def test_a_primary_context_that_nobody_retains_cannot_be_current(link):
    driver.cuInit(0)
    assert driver.cuCtxSetCurrent(PRIMARY_CONTEXT_BASE) == (201,)


def test_a_primary_context_cannot_be_destroyed(link, context):
    assert driver.cuCtxDestroy(context) == (201,)


def test_destroying_a_context_drops_what_it_owns_and_nothing_else(link, context):
    _, kept = driver.cuMemAlloc(16)
    _, second = driver.cuCtxCreate(None, 0, 0)
    _, address = driver.cuMemAlloc(16)
    _, stream = driver.cuStreamCreate(0)
    assert driver.cuCtxDestroy(second) == (0,)
    assert driver.cuCtxGetCurrent() == (0, context)
    assert driver.cuMemFree(address) == (1,)
    assert driver.cuStreamDestroy(stream) == (400,)
    assert driver.cuMemFree(kept) == (0,)
    assert driver.cuCtxDestroy(second) == (201,)


def test_a_context_destroyed_elsewhere_says_so_where_it_is_current(link, context):
    _, second = driver.cuCtxCreate(None, 0, 0)
    assert in_thread(lambda: driver.cuCtxDestroy(second)) == (0,)
    assert driver.cuMemAlloc(16) == (709, None)
    assert driver.cuCtxPopCurrent() == (0, second)
    assert driver.cuMemAlloc(16)[0] == 0


def test_a_context_that_the_server_cannot_create_is_not_current(link, context):
    link.fail_next[Op.CTX_CREATE] = 2
    assert driver.cuCtxCreate(None, 0, 0) == (2, None)
    assert driver.cuCtxGetCurrent() == (0, context)


def test_context_flags_are_checked_and_kept(link, context):
    assert driver.cuCtxCreate(None, 0x100, 0) == (1, None)
    assert driver.cuCtxCreate(None, 3, 0) == (1, None)
    assert driver.cuCtxCreate(object(), 0, 0) == (801, None)
    assert driver.cuCtxCreate(None, 4, 0)[0] == 0
    assert driver.cuCtxGetFlags() == (0, 4)


def test_threads_that_push_allocate_and_free_do_not_disturb_each_other(link, context):
    failures = []

    def work():
        driver.cuCtxPushCurrent(context)
        for _ in range(200):
            result, address = driver.cuMemAlloc(64)
            if result or driver.cuMemsetD8(address, 7, 64) != (0,):
                failures.append(result)
            if driver.cuMemFree(address) != (0,):
                failures.append(address)
        driver.cuCtxPopCurrent()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert not link.memory
