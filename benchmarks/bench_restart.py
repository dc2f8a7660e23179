"""How long a program stands still while its server is replaced, on the emulated device.

Run ``python benchmarks/bench_restart.py``: it prints one JSON line a figure. The session holds
little, as the emulated device copies memory that a GPU would hand over as it is.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
from typing import Any

from harness import Server, calls_during, report, report_replacement, session

import outlast.shim.driver as cuda

SIZE = 1 << 20
#: A spare worker starts two seconds after a session has taken the last one.
PAUSE = 4.0  # seconds


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call that must have succeeded."""
    if int(answer[0]):
        raise RuntimeError(f"CUDA error {int(answer[0])}: {cuda.last_error()}")
    return answer[1] if len(answer) > 1 else None


def synchronize() -> None:
    """Do what a program does all the time."""
    ok(cuda.cuCtxSynchronize())
    time.sleep(0.0005)


def restart(server: Server) -> tuple[float, float, float]:
    """Restart a server by SIGUSR2; return seconds until it was gone, ready, and has its session."""
    marks: list[float] = []

    def change() -> None:
        marks.append(time.perf_counter())
        server.stop(number=signal.SIGUSR2)
        marks.append(time.perf_counter())
        server.start()
        marks.append(time.perf_counter())

    spans = calls_during(synchronize, change)
    began, gone, ready = marks
    ended = next(ended for _, ended in spans if ended > gone)
    return gone - began, ready - began, ended - began


def main() -> None:
    """Take the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with session() as server:
        ok(cuda.cuInit(0))
        ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
        ok(cuda.cuMemsetD32(ok(cuda.cuMemAlloc(SIZE)), 1, SIZE // 4))
        spans = []
        for _ in range(rounds):
            time.sleep(PAUSE)
            spans.append(restart(server))
        for what, span in zip(("gone", "ready", "stall"), zip(*spans, strict=True), strict=True):
            report(f"restart that copies nothing: {what}", statistics.median(span), "s")
            report(f"restart that copies nothing: {what}, at best", min(span), "s")
        for _ in range(rounds):
            time.sleep(PAUSE)
            report_replacement(server, synchronize, "1 MiB")
        cuda.close(end=True)


if __name__ == "__main__":
    main()
