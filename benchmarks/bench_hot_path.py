"""What Python costs on both sides of a launch and of a wait: no sockets, one thread, no GPU.

JSON lines, nanoseconds a call. Machines are noisy: each figure is the least of many short
rounds, and what is to be compared is best measured by turns.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

from harness import EMPTY_KERNEL, report
from wireless import Wireless, wireless

import outlast.shim.driver as cuda
from outlast.session.client import BATCH_CALLS

ARGUMENTS = ((0,), (ctypes.c_void_p,))
BATCHES = 10
LAUNCHES = BATCHES * BATCH_CALLS
WAITS = 100


def prepare() -> tuple[Any, Any]:
    """Return kernel and stream."""
    assert cuda.cuInit(0)[0] == 0
    cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
    module = cuda.cuModuleLoadData(EMPTY_KERNEL)[1]
    kernel = cuda.cuModuleGetFunction(module, b"empty")[1]
    return kernel, cuda.cuStreamCreate(1)[1]


def launches(both: Wireless, kernel: Any, streams: list[Any], rounds: int) -> tuple[float, float]:
    """Return the nanoseconds of a launch on the client and in the worker, in turns of streams."""
    call, here, there = cuda.cuLaunchKernel, [], []
    messages, step = both.worker._link.messages, both.worker._step
    for _ in range(rounds):
        assert cuda.cuStreamSynchronize(streams[0])[0] == 0
        both.link._session._truncate(both.link._session.applied)
        began = time.perf_counter()
        for _ in range(LAUNCHES // len(streams)):
            for stream in streams:
                call(kernel, 1, 1, 1, 1, 1, 1, 0, stream, ARGUMENTS, 0)
        here.append(time.perf_counter() - began)
        batches = list(messages)
        assert len(batches) == BATCHES
        messages.clear()
        began = time.perf_counter()
        for batch in batches:
            messages.append(batch)
            step()
        there.append(time.perf_counter() - began)
    return min(here) / LAUNCHES * 1e9, min(there) / LAUNCHES * 1e9


def device_call(both: Wireless, rounds: int) -> float:
    """Return the nanoseconds of the device's call alone."""
    driver = both.driver
    call, least = driver.cuda.cuLaunchKernel, float("inf")
    (kernel,), stream = driver._functions.values(), [*driver._streams.values()][-1]
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            call(kernel.raw, 1, 1, 1, 1, 1, 1, 0, stream.raw, kernel.pointers, 0)
        least = min(least, time.perf_counter() - began)
        driver.cuda.cuCtxSynchronize()
    return least / LAUNCHES * 1e9


def waits(both: Wireless, call: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return the nanoseconds that a call which waits takes on the client and in the worker."""
    here, there = [], []
    for _ in range(rounds):
        both.end.elsewhere = 0.0
        began = time.perf_counter()
        for _ in range(WAITS):
            call()
        took = time.perf_counter() - began
        here.append(took - both.end.elsewhere)
        there.append(both.end.elsewhere)
        both.link._session._truncate(both.link._session.applied)
    return min(here) / WAITS * 1e9, min(there) / WAITS * 1e9


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--gpu", action="store_true", help="a GPU in place of the fake one")
    options = parser.parse_args()
    rounds = options.rounds
    with wireless(options.gpu) as both:
        kernel, stream = prepare()
        other = cuda.cuStreamCreate(1)[1]

        def synchronise() -> None:
            cuda.cuStreamSynchronize(stream)

        def launch_and_synchronise() -> None:
            cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, ARGUMENTS, 0)
            cuda.cuStreamSynchronize(stream)

        report("the device's call alone", device_call(both, rounds), "ns")
        for name, streams in (("", [stream]), (", two streams by turns", [stream, other])):
            client, worker = launches(both, kernel, streams, rounds)
            report(f"launch{name}: client", client, "ns")
            report(f"launch{name}: worker, device's call included", worker, "ns")
        for name, call in (
            ("idle cuStreamSynchronize", synchronise),
            ("launch + synchronize", launch_and_synchronise),
        ):
            client, worker = waits(both, call, rounds)
            report(f"{name}: client", client, "ns")
            report(f"{name}: worker", worker, "ns")


if __name__ == "__main__":
    main()
