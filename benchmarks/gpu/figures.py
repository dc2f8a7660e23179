"""The figures of one program, taken through any module with CUDA's driver functions.

Run ``python figures.py native`` for `cuda.bindings.driver` in this process, or ``python
figures.py outlast`` for a session on the server that ``LUPINE_SERVER`` names. Each prints
one JSON line a figure.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "resume_training"
sys.path[:0] = [str(HERE.parent), str(EXAMPLE)]

from harness import EMPTY_KERNEL, median_us, report  # noqa: E402

MODULES = {"native": "cuda.bindings.driver", "outlast": "outlast.shim.driver"}
LAUNCHES = 20_000
ROUNDS = 5
REPEAT = 1_000
MIB = 1 << 20
BIG = 256 * MIB
STEPS = 1_500


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call that must have succeeded."""
    if int(answer[0]):
        raise RuntimeError(f"CUDA error {int(answer[0])}")
    return answer[1] if len(answer) > 1 else None


class Figures:
    """Measures one driver module.

    Parameters
    ----------
    name
        Key of `MODULES`; it is in each line that is printed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        cuda = self.cuda = importlib.import_module(MODULES[name])
        ok(cuda.cuInit(0))
        ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
        module = ok(cuda.cuModuleLoadData(EMPTY_KERNEL + b"\0"))
        self.kernel = ok(cuda.cuModuleGetFunction(module, b"empty"))
        self.stream = ok(cuda.cuStreamCreate(1))

    def tell(self, figure: str, value: float, unit: str) -> None:
        """Print one figure."""
        report(figure, value, unit, by=self.name)

    def run(self) -> None:
        """Take every figure."""
        self.launches()
        self.round_trips()
        self.copies()
        self.training()

    def launches(self) -> None:
        """Launches one after another: what a call costs, and what one costs with its work."""
        call, kernel, stream = self.cuda.cuLaunchKernel, self.kernel, self.stream
        arguments = ((0,), (ctypes.c_void_p,))
        issue, total = [], []
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            for _ in range(LAUNCHES):
                call(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
            issued = time.perf_counter()
            ok(self.cuda.cuStreamSynchronize(stream))
            total.append((time.perf_counter() - began) / LAUNCHES * 1e6)
            issue.append((issued - began) / LAUNCHES * 1e6)
        self.tell("kernel launch, issue", statistics.median(issue[1:]), "us")
        self.tell("kernel launch, with final sync", statistics.median(total[1:]), "us")

    def round_trips(self) -> None:
        """Calls that wait."""
        cuda, kernel, stream = self.cuda, self.kernel, self.stream
        arguments = ((0,), (ctypes.c_void_p,))
        memory = ok(cuda.cuMemAlloc(2 * MIB))
        page = bytearray(4096)

        def launch_and_wait() -> None:
            cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
            cuda.cuStreamSynchronize(stream)

        def allocate() -> None:
            cuda.cuMemFree(cuda.cuMemAlloc(2 * MIB)[1])

        def to_device() -> None:
            cuda.cuMemcpyHtoD(memory, page, 4096)

        def to_host() -> None:
            cuda.cuMemcpyDtoH(page, memory, 4096)

        for name, call in (
            ("idle cuStreamSynchronize", lambda: cuda.cuStreamSynchronize(stream)),
            ("launch + synchronize", launch_and_wait),
            ("cuMemGetInfo", cuda.cuMemGetInfo),
            ("cuMemAlloc + cuMemFree of 2 MiB", allocate),
            ("4 KiB copy to host", to_host),
            ("4 KiB copy to device", to_device),
        ):
            self.tell(name, _median(call), "us")
            ok(cuda.cuCtxSynchronize())
        ok(cuda.cuMemFree(memory))

    def copies(self, note: str = "") -> None:
        """Large copies from and to ordinary and page-locked memory."""
        cuda = self.cuda
        memory = ok(cuda.cuMemAlloc(BIG))
        pageable = bytearray(os.urandom(MIB) * (BIG // MIB))
        pinned = ok(cuda.cuMemHostAlloc(BIG, 0))
        for kind, host in (("pageable", pageable), ("pinned", pinned)):
            self._copy(f"256 MiB to device, {kind}{note}", cuda.cuMemcpyHtoD, memory, host)
            self._copy(f"256 MiB to host, {kind}{note}", cuda.cuMemcpyDtoH, host, memory)
        ok(cuda.cuMemFreeHost(pinned))
        ok(cuda.cuMemFree(memory))

    def _copy(self, name: str, copy: Callable[..., Any], target: Any, source: Any) -> None:
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            ok(copy(target, source, BIG))
            ok(self.cuda.cuCtxSynchronize())
            seconds.append(time.perf_counter() - began)
        self.tell(name, BIG / min(seconds) / 1e9, "GB/s")

    def training(self) -> None:
        """The example's training, losses read every ten steps."""
        training = importlib.import_module("training")
        training.train(self.cuda, steps=100)
        began = time.perf_counter()
        training.train(self.cuda, steps=STEPS)
        self.tell("demo training, a step", (time.perf_counter() - began) / STEPS * 1e3, "ms")


def _median(call: Callable[[], object]) -> float:
    median_us(call, REPEAT // 10)
    return median_us(call, REPEAT)


def main() -> None:
    """Take the figures of one module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", choices=sorted(MODULES))
    parser.add_argument("--copies", metavar="NOTE", help="only large copies, under this note")
    options = parser.parse_args()
    figures = Figures(options.module)
    if options.copies:
        figures.copies(f", {options.copies}")
    else:
        figures.run()
    if figures.name == "outlast":
        figures.cuda.close(end=True)


if __name__ == "__main__":
    main()
