"""Rounding, flushing, packed types and saturation against exact arithmetic, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.exact_cases import all_cases
from helpers.exact_inputs import inputs_for
from helpers.exact_runs import KINDS, wrong_cases
from helpers.instruction_rows import THREADS, ptx_of

CASES = all_cases()


@pytest.fixture(scope="module")
def kernel(host: Any) -> int:
    text = ptx_of(case.row for case in CASES)
    result, module = host.cuda.cuModuleLoadData(text.encode())
    assert result == 0, host.cuda.load_log
    return int(host.cuda.cuModuleGetFunction(module, b"all")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_instructions_give_the_bits_of_exact_arithmetic(host: Any, kernel: int, kind: str) -> None:
    inputs = inputs_for(kind)
    outputs = host.put(np.zeros((len(CASES), THREADS), np.uint64))
    host.run(kernel, 1, THREADS, host.put(inputs), outputs)
    found = host.get(outputs, np.zeros((len(CASES), THREADS), np.uint64))
    assert wrong_cases(CASES, found, inputs, kind) == {}
