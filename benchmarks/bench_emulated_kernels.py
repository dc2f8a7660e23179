"""How fast kernels run on the emulated device, beside the same loops in C on one core.

Run ``python benchmarks/bench_emulated_kernels.py``; it prints one JSON line a measurement. Kernels
are those of the tests, so this runs in a checkout. Without a C compiler the ratios are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import EMPTY_KERNEL, report
from numpy.typing import NDArray

from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit

KERNELS = Path(__file__).resolve().parents[1] / "tests" / "kernels" / "common.ptx"
COUNT = 1 << 20  # elements
SIDE = 256  # of the matrices
ROWS, COLUMNS = 1024, 512  # of the softmax

LOOPS = r"""
#include <math.h>
#include <string.h>
void vector_add(const float *a, const float *b, float *c, int n) {
    for (int i = 0; i < n; i++) c[i] = a[i] + b[i];
}
void matmul(const float *a, const float *b, float *c, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}
void block_reduce(const float *x, float *out, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    *out = sum;
}
void softmax(const float *x, float *y, int columns, int rows) {
    for (int r = 0; r < rows; r++, x += columns, y += columns) {
        float largest = x[0], sum = 0;
        for (int i = 1; i < columns; i++) largest = fmaxf(largest, x[i]);
        for (int i = 0; i < columns; i++) sum += y[i] = expf(x[i] - largest);
        for (int i = 0; i < columns; i++) y[i] /= sum;
    }
}
void adamw(float *p, const float *g, float *m, float *v, float rate, float b1, float b2,
           float epsilon, float decay, int step, int n) {
    float s1 = 1 - powf(b1, step), s2 = 1 - powf(b2, step);
    for (int i = 0; i < n; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] = p[i] * (1 - rate * decay) - rate * (m[i] / s1) / (sqrtf(v[i] / s2) + epsilon);
    }
}
void histogram(const unsigned char *x, unsigned *counts, int n) {
    for (int i = 0; i < n; i++) counts[x[i]]++;
}
"""

Array = NDArray[Any]


@dataclass(frozen=True)
class Work:
    """A kernel with its launch; the loop in C takes the same arguments, and ``more``."""

    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[Any, ...]
    more: tuple[Any, ...] = ()
    shared: int = 0


def works() -> list[Work]:
    """Return what is measured."""
    random = np.random.default_rng(1)

    def floats(count: int = COUNT) -> Array:
        return random.random(count, np.float32)

    single = ctypes.c_float
    rates = tuple(single(value) for value in (1e-3, 0.9, 0.999, 1e-8, 0.01))
    tiles, square = SIDE // 16, SIDE * SIDE
    bytes_ = random.integers(0, 256, COUNT, dtype=np.uint8)
    return [
        Work("vector_add", (COUNT // 256, 1), (256, 1), (floats(), floats(), floats(), COUNT)),
        Work(
            "matmul",
            (tiles, tiles),
            (16, 16),
            (floats(square), floats(square), floats(square), SIDE),
        ),
        Work("block_reduce", (COUNT // 256, 1), (256, 1), (floats(), floats(1), COUNT)),
        Work(
            "softmax",
            (ROWS, 1),
            (128, 1),
            (floats(ROWS * COLUMNS), floats(ROWS * COLUMNS), COLUMNS),
            (ROWS,),
            shared=16,
        ),
        Work(
            "adamw",
            (COUNT // 256, 1),
            (256, 1),
            (*(floats() for _ in range(4)), *rates, 7, COUNT),
        ),
        Work("histogram", (64, 1), (256, 1), (bytes_, np.zeros(256, np.uint32), COUNT)),
    ]


def best(action: Callable[[], object], repeat: int) -> float:
    """Return the shortest of several durations, in milliseconds."""
    samples = []
    for _ in range(repeat):
        began = time.perf_counter()
        action()
        samples.append(time.perf_counter() - began)
    return min(samples) * 1e3


def check(returned: tuple[Any, ...]) -> Any:
    """Return the value of a driver call; raise if it failed."""
    if returned[0]:
        raise RuntimeError(str(returned[0]))
    return returned[1] if len(returned) == 2 else None


def compile_loops(folder: Path) -> ctypes.CDLL | None:
    """Return the loops in C; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, library = folder / "loops.c", folder / "loops.so"
    source.write_text(LOOPS)
    options = ["-O2", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    subprocess.run([compiler, *options], check=True)
    return ctypes.CDLL(str(library))


def open_device(cache: Path) -> EmulatedDriver:
    """Return a device with a context."""
    cuda = EmulatedDriver(jit=Jit(cache))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    return cuda


def measure_kernels(cuda: EmulatedDriver, loops: ctypes.CDLL | None, repeat: int) -> None:
    """Run each kernel beside its loop."""
    module = check(cuda.cuModuleLoadData(KERNELS.read_bytes()))
    for work in works():
        kernel = check(cuda.cuModuleGetFunction(module, work.kernel.encode()))
        values, kinds = [], []
        for value in work.arguments:
            if isinstance(value, np.ndarray):
                address = check(cuda.cuMemAlloc(value.nbytes))
                check(cuda.cuMemcpyHtoD(address, value, value.nbytes))
                values.append(address)
                kinds.append(ctypes.c_void_p)
            else:
                values.append(value)
                kinds.append(type(value) if isinstance(value, ctypes.c_float) else ctypes.c_int)
        given = (tuple(values), tuple(kinds))

        def run(kernel: int = kernel, work: Work = work, given: Any = given) -> None:
            shape = (*work.grid, 1, *work.block, 1)
            check(cuda.cuLaunchKernel(kernel, *shape, work.shared, 0, given, 0))
            check(cuda.cuCtxSynchronize())

        run()
        mine, extra = best(run, repeat), {}
        if loops is not None:
            extra = {"ratio_to_c": round(mine / best(_loop(loops, work), repeat), 2)}
        report(work.kernel, mine, "ms", **extra)


def _loop(loops: ctypes.CDLL, work: Work) -> Callable[[], object]:
    arguments = [
        value.copy().ctypes.data_as(ctypes.c_void_p) if isinstance(value, np.ndarray) else value
        for value in (*work.arguments, *work.more)
    ]
    return lambda: getattr(loops, work.kernel)(*arguments)


def measure_calls(cuda: EmulatedDriver, count: int) -> None:
    """Measure an empty launch with its issue, and loads of modules that are known."""
    module = check(cuda.cuModuleLoadData(EMPTY_KERNEL))
    kernel, parameters = check(cuda.cuModuleGetFunction(module, b"empty")), bytes(8)

    def queue() -> None:
        for _ in range(count):
            cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, parameters)
        check(cuda.cuCtxSynchronize())

    queue()
    report("empty launch", best(queue, 5) / count * 1e3, "us")
    for name, image in (("empty kernel", EMPTY_KERNEL), ("common.ptx", KERNELS.read_bytes())):

        def load(image: bytes = image) -> None:
            check(cuda.cuModuleUnload(check(cuda.cuModuleLoadData(image))))

        load()
        report(
            f"module load again, {name}", statistics.median(best(load, 1) for _ in range(9)), "ms"
        )


def main() -> None:
    """Measure with a cache of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each kernel")
    parser.add_argument("--count", type=int, default=20_000, help="empty launches")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cuda = open_device(Path(directory))
        measure_kernels(cuda, compile_loops(Path(directory)), options.repeat)
        measure_calls(cuda, options.count)
        cuda.close()


if __name__ == "__main__":
    main()
