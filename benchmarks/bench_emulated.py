"""What a launch costs on the emulated device; prints one JSON line a measurement.

Run ``python benchmarks/bench_emulated.py``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import EMPTY_KERNEL, report

from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit


def check(returned: tuple[Any, ...]) -> Any:
    """Return the values of a driver call; raise if it failed."""
    if returned[0]:
        raise RuntimeError(str(returned[0]))
    return returned[1] if len(returned) == 2 else returned[1:]


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def open_device(cache: Path) -> tuple[EmulatedDriver, int]:
    """Return a device with a context and the empty kernel."""
    cuda = EmulatedDriver(jit=Jit(cache))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    module = check(cuda.cuModuleLoadData(EMPTY_KERNEL))
    return cuda, check(cuda.cuModuleGetFunction(module, b"empty"))


def measure(count: int, cache: Path) -> None:
    """Run every measurement."""
    report("start, nothing cached", timed(lambda: open_device(cache)[0].close()) * 1e3, "ms")
    report("start, engine cached", timed(lambda: open_device(cache)[0].close()) * 1e3, "ms")
    cuda, kernel = open_device(cache)
    parameters = bytes(8)

    def launch() -> None:
        cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters)

    report("first launch, kernel not cached", timed(launch) * 1e3, "ms")
    check(cuda.cuCtxSynchronize())

    def queue() -> None:
        for _ in range(count):
            cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters)

    def issue() -> float:
        """Return the processor time that launches take of the calling thread."""
        began = time.thread_time()
        queue()
        return time.thread_time() - began

    report("issue of an empty launch", min(issue() for _ in range(5)) / count * 1e6, "us")
    check(cuda.cuCtxSynchronize())

    def finish() -> None:
        queue()
        check(cuda.cuCtxSynchronize())

    report("empty launches, queued", count / min(timed(finish) for _ in range(5)), "1/s")

    def behind() -> float:
        """Return what the engine takes for launches that wait behind a long copy."""
        size = 256 << 20
        memory = check(cuda.cuMemAlloc(size))
        check(cuda.cuCtxSynchronize())
        start, end = check(cuda.cuEventCreate(0)), check(cuda.cuEventCreate(0))
        check(cuda.cuMemsetD8Async(memory, 1, size, 0))
        check(cuda.cuEventRecord(start, 0))
        for _ in range(count // 10):
            cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters)
        check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFree(memory))
        return float(check(cuda.cuEventElapsedTime(start, end))) * 1e3 / (count // 10)

    report("engine, an empty launch", min(behind() for _ in range(5)), "us")

    def round_trip() -> None:
        cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters)
        cuda.cuStreamSynchronize(0)

    trips = [timed(round_trip) * 1e6 for _ in range(max(count // 20, 100))]
    report("launch and synchronise", statistics.median(trips), "us")
    cuda.close()

    cuda, kernel = open_device(cache)
    report("first launch, kernel cached", timed(launch) * 1e3, "ms")
    report("module load", timed(lambda: check(cuda.cuModuleLoadData(EMPTY_KERNEL))) * 1e3, "ms")
    cuda.close()


def main() -> None:
    """Measure with a cache of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="launches a measurement")
    with tempfile.TemporaryDirectory() as directory:
        measure(parser.parse_args().count, Path(directory))


if __name__ == "__main__":
    main()
