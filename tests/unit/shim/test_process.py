"""Initialisation, link errors and fork."""

from __future__ import annotations

import logging
import os
import threading

import pytest
from helpers.fake_link import FakeLink

from outlast.errors import LinkClosed, LinkTimeout, ServerUnreachable, VersionMismatch
from outlast.session.operations import Op
from outlast.shim import driver


def unreachable() -> FakeLink:
    raise ServerUnreachable(
        "no session server answers at tcp://127.0.0.1:9",
        endpoint="tcp://127.0.0.1:9",
        stage="connect",
        attempts=3,
        elapsed=1.5,
    )


@pytest.fixture(autouse=True)
def own_link_again():
    yield
    driver.use_link(None)


def test_cuinit_without_a_server_says_device_unavailable_and_works_later():
    driver.use_link(unreachable)
    assert driver.cuInit(0) == (46,)
    assert driver.cuDeviceGetCount() == (3, None)
    driver.use_link(FakeLink())
    assert driver.cuInit(0) == (0,)
    assert driver.cuDeviceGetCount() == (0, 1)


def test_a_server_that_starts_between_two_cuinits_is_found():
    links = [unreachable, FakeLink]
    driver.use_link(lambda: links.pop(0)())
    assert driver.cuInit(0) == (46,)
    assert driver.cuInit(0) == (0,)


def test_cuinit_connects_once():
    made = []
    driver.use_link(lambda: made.append(FakeLink()) or made[-1])
    threads = [threading.Thread(target=driver.cuInit, args=(0,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert driver.cuInit(0) == (0,)
    assert len(made) == 1


def test_cuinit_with_flags_or_without_devices_fails(link):
    assert driver.cuInit(1) == (1,)
    driver.use_link(FakeLink(devices=0))
    assert driver.cuInit(0) == (100,)


def test_a_link_error_is_kept_and_logged_once_with_every_detail(caplog):
    driver.use_link(unreachable)
    with caplog.at_level(logging.ERROR, logger="outlast"):
        driver.cuInit(0)
        driver.cuInit(0)
    [record] = caplog.records
    for detail in ("ServerUnreachable", "tcp://127.0.0.1:9", "stage=connect", "attempts=3", "1.5"):
        assert detail in record.getMessage()
    error = driver.last_error()
    assert isinstance(error, ConnectionError)
    assert error.fields["attempts"] == 3


@pytest.mark.parametrize(
    ("error", "code"), [(LinkTimeout(), 46), (LinkClosed(), 4), (VersionMismatch(), 803)]
)
def test_a_link_error_becomes_its_result_in_any_call(error, code, link, context):
    link.error = error
    assert driver.cuMemAlloc(16) == (code, None)
    assert driver.last_error() is error
    assert driver.cuMemAlloc(16)[0] == 0


def test_a_sticky_error_comes_from_every_travelling_call_and_from_no_local_one(link, context):
    _, address = driver.cuMemAlloc(16)
    _, event = driver.cuEventCreate(0)
    link.poison = 700
    before = len(link.calls)
    assert driver.cuMemAlloc(16) == (700, None)
    assert driver.cuMemFree(address) == (700,)
    assert driver.cuCtxSynchronize() == (700,)
    assert driver.cuMemcpyDtoH(bytearray(16), address, 16) == (700,)
    assert driver.cuEventRecord(event, 0) == (700,)
    assert driver.cuStreamQuery(0) == (700,)
    assert driver.cuDevicePrimaryCtxReset(0) == (700,)
    assert len(link.calls) == before
    assert driver.cuDeviceGetCount() == (0, 2)
    assert driver.cuMemGetAddressRange(address) == (0, address, 16)


def test_a_late_error_is_reported_once_by_a_waiting_call_only(link, context):
    _, address = driver.cuMemAlloc(16)
    _, event = driver.cuEventCreate(0)
    waiting = (
        driver.cuCtxSynchronize,
        lambda: driver.cuStreamSynchronize(0),
        lambda: driver.cuEventSynchronize(event),
        lambda: driver.cuMemcpyDtoH(bytearray(16), address, 16),
        lambda: driver.cuMemAlloc(16)[:1],
    )
    for call in waiting:
        link.deferred[context] = [1]
        assert driver.cuEventRecord(event, 0) == (0,)
        assert driver.cuStreamQuery(0) == (0,)
        assert driver.cuEventQuery(event) == (0,)
        assert driver.cuMemsetD8(address, 0, 16) == (0,)
        assert call() == (1,)
        assert call() == (0,)


def test_a_late_error_keeps_an_allocation_from_being_made(link, context):
    link.deferred[context] = [719]
    assert driver.cuMemAlloc(16) == (719, None)
    assert Op.MEM_ALLOC not in link.ops()


def test_a_late_error_stays_with_its_context(link, context):
    link.deferred[context + 16] = [1]
    assert driver.cuCtxSynchronize() == (0,)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_not_initialized_and_the_parent_goes_on(link, context):
    _, address = driver.cuMemAlloc(16)
    child = os.fork()
    if not child:
        results = (
            driver.cuInit(0)[0],
            driver.cuDeviceGetCount()[0],
            driver.cuDriverGetVersion()[0],
            driver.cuMemAlloc(16)[0],
            driver.cuMemFree(address)[0],
            driver.cuCtxSynchronize()[0],
            driver.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0],
        )
        os._exit(0 if results == (3,) * 7 and not link.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert driver.cuMemFree(address) == (0,)
    assert not link.closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_before_cuinit_may_initialise(link):
    child = os.fork()
    if not child:
        os._exit(driver.cuInit(0)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
