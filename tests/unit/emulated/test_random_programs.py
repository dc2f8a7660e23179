"""Random kernels on the device and in a plain interpreter: both must leave the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.random_programs import FLOATS, INTEGERS, Interpreter, Program, Writer, programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: Threads of a block: a part of a warp, and two warps of which the second is not whole.
SIZES = [20, 45]


def compare(host: Any, program: Program, threads: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    integers = random.integers(0, 1 << 32, (INTEGERS, threads), dtype=np.uint32)
    small = random.random((INTEGERS, threads)) < 0.5
    integers = np.where(small, integers >> np.uint32(27), integers)
    floats = random.normal(0, 3, (FLOATS, threads)).astype(np.float32)
    text = Writer().text(program)
    result, module = host.cuda.cuModuleLoadData(text.encode())
    assert result == 0, host.cuda.load_log
    kernel = host.cuda.cuModuleGetFunction(module, b"run")[1]
    words = np.concatenate([integers, floats.view(np.uint32)]).T.copy()
    memory = host.put(words)
    host.run(kernel, 1, threads, memory)
    found = host.get(memory, words).T
    assert host.cuda.cuMemFree(memory)[0] == 0
    assert host.cuda.cuModuleUnload(module)[0] == 0
    expected = Interpreter(integers, floats)
    expected.run(program)
    assert np.array_equal(found[:INTEGERS], expected.r), text
    mine = found[INTEGERS:].copy().view(np.float32)
    same = (mine.view(np.uint32) == expected.f.view(np.uint32)) | (
        np.isnan(mine) & np.isnan(expected.f)
    )
    assert same.all(), text


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(programs, st.sampled_from(SIZES), st.integers(0, 1000))
def test_random_programs(host: Any, program: Program, threads: int, seed: int) -> None:
    compare(host, program, threads, seed)


@pytest.mark.soak
@settings(
    max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(programs, st.sampled_from(SIZES), st.integers(0, 1000))
@pytest.mark.timeout(1800)
def test_many_random_programs(host: Any, program: Program, threads: int, seed: int) -> None:
    compare(host, program, threads, seed)
