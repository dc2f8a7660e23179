"""333 instructions against a GPU, bit for bit.

``instructions.npz`` holds instructions with the types of their results and sources, 128 rows of
three 64-bit inputs, many of them edge cases, and what an NVIDIA H200 makes of them. All run in
one kernel here; a NaN equals any NaN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.instruction_rows import is_nan, ptx_of, rows_of

TABLE = Path(__file__).parents[2] / "kernels" / "instructions.npz"


@pytest.fixture(scope="module")
def table() -> Any:
    with np.load(TABLE) as file:
        return dict(file)


def test_every_instruction_gives_the_bits_of_a_gpu(host: Any, table: Any) -> None:
    result, module = host.cuda.cuModuleLoadData(ptx_of(rows_of(TABLE)).encode())
    assert result == 0, host.cuda.load_log
    kernel = host.cuda.cuModuleGetFunction(module, b"all")[1]
    outputs = host.put(np.zeros_like(table["outputs"]))
    host.run(kernel, 1, 128, host.put(table["inputs"]), outputs)
    found = host.get(outputs, table["outputs"])
    wrong = {}
    for name, kind, mine, gpu in zip(
        table["instructions"], table["results"], found, table["outputs"], strict=True
    ):
        same = (mine == gpu) | (is_nan(mine, kind) & is_nan(gpu, kind))
        if not same.all():
            row = int(np.argmin(same))
            wrong[str(name)] = (row, hex(mine[row]), hex(gpu[row]))
    assert wrong == {}
