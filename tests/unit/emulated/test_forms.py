"""Seldom forms of instructions, and that no instruction the device knows goes untested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import matrix_products, ptx_calls
from helpers.exact_cases import all_cases
from helpers.instruction_rows import ptx_of, rows_of
from helpers.ptx_forms import FORMS
from helpers.ptx_memory_forms import Form

from outlast.server.drivers.emulated.lower import kernel as families
from outlast.server.drivers.emulated.lower.registry import LOWERINGS
from outlast.server.drivers.emulated.ptx.nodes import Instruction
from outlast.server.drivers.emulated.ptx.parser import parse

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_form_gives_what_ptx_says(host: Any, form: Form) -> None:
    result, module = host.cuda.cuModuleLoadData(form.text.encode())
    assert result == 0, host.cuda.load_log
    kernel = host.cuda.cuModuleGetFunction(module, b"run")[1]
    out, memory = np.zeros(32, np.uint32), np.arange(1, 1025, dtype=np.uint32)
    place = host.put(out)
    host.run(kernel, 1, 32, place, host.put(memory), 7)
    assert host.get(place, out).tolist() == [form.expected(t) for t in range(32)]


def test_every_opcode_with_every_word_is_in_a_kernel_that_a_test_runs() -> None:
    """Of the files here all kernels are run, and of the texts of the helpers."""
    assert families.FAMILIES  # the modules that register lowerings are imported
    texts = [path.read_text() for path in KERNELS.rglob("*.ptx")]
    texts += [ptx_of(rows_of(KERNELS / "instructions.npz")), ptx_of(c.row for c in all_cases())]
    texts += [matrix_products.kernel_text(), ptx_calls.RECURSION, ptx_calls.CHOICE]
    texts += [form.text for form in FORMS]
    seen: dict[str, set[str]] = {}
    for text in texts:
        for function in parse(text).functions.values():
            for step in function.body or ():
                if isinstance(step, Instruction):
                    seen.setdefault(step.opcode[0], set()).update(step.opcode[1:])
    missing = {
        opcode: sorted(lowering.words - seen.get(opcode, set()))
        for opcode, lowering in LOWERINGS.items()
        if opcode not in seen or lowering.words - seen[opcode]
    }
    assert missing == {}


def test_the_page_names_every_opcode() -> None:
    page = (Path(__file__).parents[3] / "docs" / "emulated_device.md").read_text()
    table = page.split("## Instructions")[1].split("Refused:")[0]
    assert set(LOWERINGS) <= set(re.findall(r"`(\w+)`", table))
