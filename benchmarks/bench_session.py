"""Calls through client and server against the same calls in one process, as JSON lines.

The last column of interest is the ratio within one run: machines are noisy. The plain
ZeroMQ echo says what a round trip costs on this machine before any work of ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from types import ModuleType
from typing import Any

import zmq
from harness import EMPTY_KERNEL, Server, median_us, report, session

import outlast.shim.driver as remote
from outlast.server.drivers.emulated import EmulatedDriver

GRID = (1, 1, 1, 1, 1, 1)
ECHO = """
import sys, zmq
router = zmq.Context().socket(zmq.ROUTER)
print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while (frames := router.recv_multipart())[-1] != b"stop":
    router.send_multipart(frames)
"""

Cuda = ModuleType | EmulatedDriver


def prepare(cuda: Any) -> tuple[Any, Any]:
    """Return (function, stream) of an empty kernel."""
    assert cuda.cuInit(0)[0] == 0
    context = cuda.cuDevicePrimaryCtxRetain(0)[1]
    cuda.cuCtxSetCurrent(context)
    module = cuda.cuModuleLoadData(EMPTY_KERNEL)[1]
    function = cuda.cuModuleGetFunction(module, b"empty")[1]
    stream = cuda.cuStreamCreate(1)[1]
    launch(cuda, function, stream)
    assert cuda.cuStreamSynchronize(stream)[0] == 0
    return function, stream


def launch(cuda: Any, function: Any, stream: Any) -> None:
    """Launch the empty kernel."""
    import ctypes

    cuda.cuLaunchKernel(function, *GRID, 0, stream, ((0,), (ctypes.c_void_p,)), 0)


def queued_launches(cuda: Any, function: Any, stream: Any, count: int) -> float:
    """Return launches per second, the final synchronisation included."""
    import ctypes

    call, arguments = cuda.cuLaunchKernel, ((0,), (ctypes.c_void_p,))
    start = time.perf_counter()
    for _ in range(count):
        call(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
    assert cuda.cuStreamSynchronize(stream)[0] == 0
    return count / (time.perf_counter() - start)


def echo_us(repeat: int) -> float:
    """Return the median round trip of a plain ZeroMQ echo between two Python processes."""
    child = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{child.stdout.readline().strip()}")

    def round_trip() -> None:
        dealer.send_multipart([b"h" * 28, b"r" * 24])
        dealer.recv_multipart()

    round_trip()
    value = median_us(round_trip, repeat)
    dealer.send_multipart([b"stop"])
    child.wait(10)
    child.stdout.close()
    context.destroy(linger=0)
    return value


def compare_calls(count: int, repeat: int) -> None:
    """Print launch rate, round trips and copies, remote against in-process."""
    local = EmulatedDriver()
    here = prepare(local)
    there = prepare(remote)
    for cuda, pair in ((local, here), (remote, there)):
        queued_launches(cuda, *pair, count // 10)
    rates = [
        max(queued_launches(cuda, *pair, count) for _ in range(3))
        for cuda, pair in ((local, here), (remote, there))
    ]
    report("queued launches, in process", rates[0], "1/s")
    report("queued launches, session", rates[1], "1/s", ratio=round(rates[1] / rates[0], 3))
    echo = echo_us(repeat)
    report("plain ZeroMQ echo", echo, "us")
    for name, call in (
        ("synchronise an idle stream", lambda c, f, s: c.cuStreamSynchronize(s)),
        ("launch and synchronise", _launch_and_synchronise),
    ):
        in_process = median_us(lambda call=call: call(local, *here), repeat)  # type: ignore[misc]
        through = median_us(lambda call=call: call(remote, *there), repeat)  # type: ignore[misc]
        report(f"{name}, in process", in_process, "us")
        report(f"{name}, session", through, "us", over_echo=round(through / echo, 3))
    local.close()


def _launch_and_synchronise(cuda: Any, function: Any, stream: Any) -> None:
    launch(cuda, function, stream)
    cuda.cuStreamSynchronize(stream)


def copies(size: int) -> None:
    """Print copy bandwidth through the session."""
    pointer = remote.cuMemAlloc(size)[1]
    host = bytearray(size)
    for name, copy in (
        ("to the device", lambda: remote.cuMemcpyHtoD(pointer, host, size)),
        ("to the host", lambda: remote.cuMemcpyDtoH(host, pointer, size)),
    ):
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            assert copy()[0] == 0
            remote.cuCtxSynchronize()
            best = max(best, size / (time.perf_counter() - start) / 1e9)
        report(f"copy of {size >> 20} MiB {name}", best, "GB/s")
    remote.cuMemFree(pointer)


def handles(count: int) -> None:
    """Print what a journaled handle costs, created and destroyed."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(count):
            stream = remote.cuStreamCreate(1)[1]
            remote.cuStreamDestroy(stream)
        remote.cuCtxSynchronize()
        return (time.perf_counter() - start) / count * 1e6

    run()
    report("stream created and destroyed, journaled", run(), "us")


def recovery(server: Server) -> None:
    """Print how long calls stand still over a planned restart and a killed worker."""
    pointer = remote.cuMemAlloc(64 << 20)[1]
    remote.cuMemsetD8(pointer, 1, 64 << 20)
    remote.cuCtxSynchronize()
    start = time.perf_counter()
    server.stop()
    server.start()
    remote.cuCtxSynchronize()
    report("planned restart, 64 MiB: stall", time.perf_counter() - start, "s")
    workers = server.children()
    start = time.perf_counter()
    for pid in workers:
        subprocess.run(["kill", "-9", str(pid)], check=False)
    remote.cuCtxSynchronize()
    report("all workers killed, 64 MiB: stall", time.perf_counter() - start, "s")


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3_000)
    options = parser.parse_args()
    with session() as server:
        compare_calls(options.launches, options.repeat)
        copies(64 << 20)
        handles(5_000)
        recovery(server)
        remote.close(end=True)
    with session("--relay"):
        remote.use_link(None)
        function, stream = prepare(remote)
        rate = queued_launches(remote, function, stream, options.launches)
        report("queued launches, relay", rate, "1/s")
        sync = median_us(lambda: remote.cuStreamSynchronize(stream), options.repeat)
        report("synchronise an idle stream, relay", sync, "us")
        remote.close(end=True)


if __name__ == "__main__":
    main()
