"""Host functions run once, in their place, and hold back what comes behind them."""

from __future__ import annotations

import ctypes
import threading

import pytest

from outlast.session.operations import Op
from outlast.shim import driver

NOT_READY, NOT_PERMITTED, INVALID_VALUE = 600, 800, 1
NON_BLOCKING = 1
ENOUGH = 20.0  # seconds


class Slow:
    """A function that goes on when a test says so, and notes when it ended."""

    def __init__(self, seen):
        self.entered, self.release = threading.Event(), threading.Event()
        self._seen = seen

    def __call__(self, data):
        self.entered.set()
        assert self.release.wait(ENOUGH)
        self._seen.append(data)


@pytest.fixture
def memory(context):
    return driver.cuMemAlloc(64)[1]


@pytest.fixture
def seen():
    return []


def stream(flags=NON_BLOCKING):
    return driver.cuStreamCreate(flags)[1]


def behind(seen, context, call):
    """Make a call in another thread, which notes when it returned."""

    def run():
        driver.cuCtxSetCurrent(context)
        call()
        seen.append("behind")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("host", "work"), [("own", "own"), ("blocking", 0), (0, "blocking"), (0, 0)]
)
def test_work_behind_a_function_waits_for_it(link, context, memory, seen, host, work):
    streams = {"own": stream(), "blocking": stream(0), 0: 0}
    slow = Slow(seen)
    assert driver.cuLaunchHostFunc(streams[host], slow, "function") == (0,)
    assert slow.entered.wait(ENOUGH)
    thread = behind(seen, context, lambda: driver.cuMemsetD8Async(memory, 1, 4, streams[work]))
    assert link.of(Op.MEMSET) == []
    assert driver.cuStreamQuery(streams[work]) == (NOT_READY,)
    slow.release.set()
    thread.join(ENOUGH)
    assert seen == ["function", "behind"]
    assert driver.cuStreamQuery(streams[work]) == (0,)
    assert len(link.of(Op.MEMSET)) == 1


@pytest.mark.parametrize(
    ("host", "work"), [("own", "other"), ("own", 0), (0, "own"), ("first", "second")]
)
def test_streams_that_do_not_wait_for_each_other_go_on(link, context, memory, seen, host, work):
    blocking = {"first": stream(0), "second": stream(0)}
    streams = {"own": stream(), "other": stream(), 0: 0, **blocking}
    slow = Slow(seen)
    assert driver.cuLaunchHostFunc(streams[host], slow, "function") == (0,)
    assert slow.entered.wait(ENOUGH)
    assert driver.cuMemsetD8Async(memory, 1, 4, streams[work]) == (0,)
    assert driver.cuStreamSynchronize(streams[work]) == (0,)
    assert seen == []
    slow.release.set()
    assert driver.cuCtxSynchronize() == (0,)
    assert seen == ["function"]


@pytest.mark.parametrize(
    "wait",
    ["cuCtxSynchronize", "cuStreamSynchronize", "cuStreamDestroy", "cuDevicePrimaryCtxReset"],
)
def test_whoever_waits_for_the_stream_waits_for_its_functions(link, context, seen, wait):
    own, slow = stream(), Slow(seen)
    assert driver.cuLaunchHostFunc(own, slow, 1) == (0,)
    assert driver.cuLaunchHostFunc(own, seen.append, 2) == (0,)
    arguments = () if wait == "cuCtxSynchronize" else (own,) if "Stream" in wait else (0,)
    thread = behind(seen, context, lambda: getattr(driver, wait)(*arguments))
    slow.release.set()
    thread.join(ENOUGH)
    assert seen == [1, 2, "behind"]


def test_a_stream_goes_without_the_functions_of_another(link, context, seen):
    own, other, slow = stream(), stream(), Slow(seen)
    assert driver.cuLaunchHostFunc(own, slow, 1) == (0,)
    assert slow.entered.wait(ENOUGH)
    assert driver.cuStreamDestroy(other) == (0,)
    assert seen == []
    slow.release.set()
    assert driver.cuStreamDestroy(own) == (0,)
    assert seen == [1]


def test_an_event_behind_a_function_tells_that_it_has_ended(link, context, seen):
    own, event = stream(), driver.cuEventCreate(0)[1]
    assert driver.cuLaunchHostFunc(own, seen.append, 1) == (0,)
    assert driver.cuEventRecord(event, own) == (0,)
    assert seen == [1]


def test_a_function_in_the_legacy_stream_runs_behind_those_it_waits_for(link, context, seen):
    slow = Slow(seen)
    assert driver.cuLaunchHostFunc(stream(0), slow, 1) == (0,)
    assert slow.entered.wait(ENOUGH)
    assert driver.cuLaunchHostFunc(0, seen.append, 2) == (0,)
    assert seen == []
    slow.release.set()
    assert driver.cuCtxSynchronize() == (0,)
    assert seen == [1, 2]


def test_cuda_cannot_be_called_in_a_function(link, context, seen):
    def call(data):
        seen.append(driver.cuMemAlloc(16))
        seen.append(driver.cuLaunchKernel(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))

    assert driver.cuLaunchHostFunc(0, call, None) == (0,)
    assert driver.cuCtxSynchronize() == (0,)
    assert seen == [(NOT_PERMITTED, None), (NOT_PERMITTED,)]
    assert driver.cuMemAlloc(16)[0] == 0


def test_a_function_is_not_run_behind_what_failed_and_a_callback_is(link, context, seen):
    own = stream()
    link.fail_next[Op.STREAM_SYNC] = 700
    assert driver.cuLaunchHostFunc(own, seen.append, 1) == (0,)
    assert driver.cuStreamQuery(own)[0] in (0, NOT_READY)
    assert driver.cuCtxSynchronize() == (0,)
    link.fail_next[Op.STREAM_SYNC] = 700
    assert driver.cuStreamAddCallback(own, lambda *given: seen.append(given), 2, 0) == (0,)
    assert driver.cuCtxSynchronize() == (0,)
    assert seen == [(own, 700, 2)]
    assert driver.cuStreamAddCallback(own, print, 0, 1) == (INVALID_VALUE,)


def test_functions_of_c_are_called_at_their_addresses(link, context, seen):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        lambda *given: seen.append(given)
    )
    own = stream()
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (function, callback)]
    assert driver.cuLaunchHostFunc(own, addresses[0], 5) == (0,)
    assert driver.cuStreamAddCallback(own, addresses[1], 6, 0) == (0,)
    assert driver.cuLaunchHostFunc(own, function, 7) == (0,)
    assert driver.cuStreamSynchronize(own) == (0,)
    assert seen == [5, (own, 0, 6), 7]
    assert driver.cuLaunchHostFunc(own, 0, 0) == (INVALID_VALUE,)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_raises_ends_no_other_one(link, context, seen):
    own = stream()

    def broken(data):
        raise ValueError(data)

    assert driver.cuLaunchHostFunc(own, broken, 1) == (0,)
    assert driver.cuLaunchHostFunc(own, seen.append, 2) == (0,)
    assert driver.cuStreamSynchronize(own) == (0,)
    assert seen == [2]
