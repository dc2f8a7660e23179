"""Damaged PTX: each file is loaded and run, or refused with a typed error; the process goes on.

A child process takes the files, so that a crash is seen as one.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fuzz_ptx

FILES, SOAK_FILES = 120, 10_000
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def take(count: int, seed: int, cache: Path, timeout: float) -> dict[str, int]:
    """Have a process take damaged files; return how often which end came."""
    cache.mkdir(exist_ok=True)
    paths = [*sys.path, str(Path(fuzz_ptx.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, fuzz_ptx.__file__, str(count), str(seed), str(cache)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        last = (cache / "last.ptx").read_text()
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
        pytest.fail(f"ended with {name}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{last}")
    counts: dict[str, int] = ast.literal_eval(done.stdout)
    return counts


def test_damaged_files_end_in_success_or_a_typed_error(tmp_path: Path) -> None:
    counts = take(FILES, 1, tmp_path, 55)
    assert counts["run 0"] > FILES // 10  # enough of them are still programs
    assert counts["load 218"] > FILES // 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_damaged_files(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    counts = take(SOAK_FILES, seed, tmp_path, 7000)
    assert counts["run 0"] > SOAK_FILES // 10


def test_a_kernel_of_a_hundred_kilobytes(host: Any) -> None:
    """As unrolled loops make them: thousands of instructions that depend on each other."""
    steps = [
        f"mad.lo.u32 %r{2 + i % 3}, %r{2 + (i + 1) % 3}, {i + 3}, %r{2 + (i + 2) % 3};"
        for i in range(3300)
    ]
    text = (
        HEADER
        + ".visible .entry k(.param .u64 out)\n{ .reg .b32 %r<6>; .reg .b64 %d<3>;\n"
        + "ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;\n"
        + "add.u64 %d1, %d1, %d2; mov.u32 %r2, %r1; mov.u32 %r3, 1; mov.u32 %r4, 2;\n"
        + "\n".join(steps)
        + "\nst.global.u32 [%d1], %r2; ret; }\n"
    )
    assert len(text) > 100_000
    result, module = host.cuda.cuModuleLoadData(text.encode())
    assert result == 0, host.cuda.load_log
    out = host.put(np.zeros(32, np.uint32))
    host.run(host.cuda.cuModuleGetFunction(module, b"k")[1], 1, 32, out)
    registers = [
        np.arange(32, dtype=np.uint32),
        np.full(32, 1, np.uint32),
        np.full(32, 2, np.uint32),
    ]
    for i in range(3300):
        product = registers[(i + 1) % 3] * np.uint32(i + 3)
        registers[i % 3] = product + registers[(i + 2) % 3]
    assert np.array_equal(host.get(out, registers[0]), registers[0])


def test_a_register_that_nothing_was_written_into_is_zero(host: Any) -> None:
    """Not anything at all, which would let LLVM do anything with the branch."""
    body = """
        .reg .b32 %never; .reg .pred %nowhere;
        mov.u32 %r9, 5;
        @%nowhere bra SKIP;
        add.u32 %r9, %r9, %never;
        SKIP: st.global.u32 [%o], %r9;
    """
    out = host.put(np.zeros(1, np.uint32))
    host.run(host.assemble(body), 1, 1, out)
    assert host.get(out, np.zeros(1, np.uint32))[0] == 5
