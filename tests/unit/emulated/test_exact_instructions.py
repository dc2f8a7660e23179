"""Rounding, flushing, packed types and saturation against exact arithmetic, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.exact_cases import Case, all_cases
from helpers.exact_inputs import inputs_for
from helpers.exact_references import width
from helpers.instruction_rows import THREADS, is_nan, ptx_of

CASES = all_cases()


def wrong_row(case: Case, found: Any, inputs: Any) -> tuple[int, str, str] | None:
    """Return the first thread whose output is not the reference's, with both."""
    masks = [np.uint64((1 << width(kind)) - 1) for kind in case.sources]
    columns = [(inputs[i] & mask).tolist() for i, mask in enumerate(masks)]
    expected = np.array([case.reference(*row) for row in zip(*columns, strict=True)], np.uint64)
    same = found == expected
    for shift, bits in ((0, 64), (0, 16), (16, 16)):
        kind = case.result if bits == 64 else case.result.removesuffix("x2")
        if (bits == 16) != case.result.endswith("x2"):
            continue
        mine, theirs = (
            v >> np.uint64(shift) & np.uint64((1 << bits) - 1) for v in (found, expected)
        )
        equal = (mine == theirs) | (is_nan(mine, kind) & is_nan(theirs, kind))
        same = equal if shift == 0 else same & equal
    if same.all():
        return None
    row = int(np.argmin(same))
    return row, hex(found[row]), hex(int(expected[row]))


@pytest.fixture(scope="module")
def kernel(host: Any) -> int:
    text = ptx_of(case.row for case in CASES)
    result, module = host.cuda.cuModuleLoadData(text.encode())
    assert result == 0, host.cuda.load_log
    return int(host.cuda.cuModuleGetFunction(module, b"all")[1])


@pytest.mark.parametrize("kind", ["f64", "f32", "f16x2", "bf16x2", "b32"])
def test_instructions_give_the_bits_of_exact_arithmetic(host: Any, kernel: int, kind: str) -> None:
    inputs = inputs_for(kind)
    outputs = host.put(np.zeros((len(CASES), THREADS), np.uint64))
    host.run(kernel, 1, THREADS, host.put(inputs), outputs)
    found = host.get(outputs, np.zeros((len(CASES), THREADS), np.uint64))
    base = kind.removesuffix("x2")
    wrong = {}
    for case, mine in zip(CASES, found, strict=True):
        source = case.sources[0].removesuffix("x2")
        if source == base or (kind == "b32" and source[0] in "bsu" and source != "bf16"):
            bad = wrong_row(case, mine, inputs)
            if bad is not None:
                wrong[case.instruction] = bad
    assert wrong == {}
