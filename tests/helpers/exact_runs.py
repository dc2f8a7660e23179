"""Which of the instructions of `exact_cases` gave something else than their references."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.exact_cases import Case
from helpers.exact_references import width
from helpers.instruction_rows import is_nan

#: Types of inputs that the cases are run on.
KINDS = ["f64", "f32", "f16x2", "bf16x2", "b32"]


def wrong_cases(
    cases: list[Case], outputs: Any, inputs: Any, kind: str
) -> dict[str, tuple[int, str, str]]:
    """Return the cases for a kind of inputs whose outputs are wrong: thread, output, reference."""
    base, wrong = kind.removesuffix("x2"), {}
    for case, found in zip(cases, outputs, strict=True):
        source = case.sources[0].removesuffix("x2")
        if source == base or (kind == "b32" and source[0] in "bsu" and source != "bf16"):
            bad = wrong_row(case, found, inputs)
            if bad is not None:
                wrong[case.instruction] = bad
    return wrong


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
