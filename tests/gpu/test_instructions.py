"""What instructions do, on the device that is tested: the references of the emulated device.

The same kernels and references are tests of the emulated device; here a GPU says whether the
references are right. They are compiled for sm_90, which has all of the instructions.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.exact_cases import all_cases
from helpers.exact_inputs import inputs_for
from helpers.exact_runs import KINDS, wrong_cases
from helpers.instruction_rows import THREADS, ptx_of
from helpers.program import Program
from helpers.ptx_calls import RECURSION
from helpers.ptx_forms import FORMS

CASES = all_cases()
#: A form whose compilation for a GPU crashes (driver 580.159).
CRASHES = "hints that need nothing"


def for_gpu(text: str) -> str:
    """Return a module for a GPU that has every instruction of the tests."""
    return text.replace(".target sm_80", ".target sm_90").replace(".version 8.0", ".version 8.3")


def test_seldom_forms_give_what_the_emulated_device_gives(program: Program) -> None:
    memory, out = program.alloc(4096), program.alloc(128)
    wrong = {}
    for form in [form for form in FORMS if form.name != CRASHES]:
        program.write(memory, np.arange(1, 1025, dtype=np.uint32).tobytes())
        program.write(out, bytes(128))
        kernel = program.kernel(program.load(for_gpu(form.text)), "run")
        given = (("pointer", out), ("pointer", memory), ("u32", 7))
        program.launch(kernel, given, threads=32)
        found = np.frombuffer(program.read(out, 128), np.uint32).tolist()
        expected = [form.expected(thread) for thread in range(32)]
        if found != expected:
            wrong[form.name] = found, expected
    assert wrong == {}


@pytest.mark.parametrize("kind", KINDS)
def test_instructions_give_the_bits_of_exact_arithmetic(program: Program, kind: str) -> None:
    size = 8 * len(CASES) * THREADS
    inputs, outputs = inputs_for(kind), program.alloc(size)
    given = program.alloc(inputs.nbytes)
    program.write(given, inputs.tobytes())
    kernel = program.kernel(program.load(for_gpu(ptx_of(case.row for case in CASES))), "all")
    program.launch(kernel, (("pointer", given), ("pointer", outputs)), threads=THREADS)
    found = (
        np.frombuffer(program.read(outputs, size), np.uint64).reshape(len(CASES), THREADS).copy()
    )
    # CUDA does not say what is found from a bit on that there is not.
    (row,) = (row for row, case in enumerate(CASES) if case.instruction == "fns.b32")
    found[row][(inputs[1] & np.uint64(0xFFFFFFFF)) > 31] = 0xFFFFFFFF
    assert wrong_cases(CASES, found, inputs, kind) == {}


def test_functions_that_call_themselves(program: Program) -> None:
    out = program.alloc(64 * 16)
    kernel = program.kernel(program.load(for_gpu(RECURSION)), "run")
    program.launch(kernel, (("pointer", out),), threads=64)
    found = np.frombuffer(program.read(out, 64 * 16), np.uint32).reshape(64, 4)
    fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21]
    assert found[:, 0].tolist() == [fibonacci[i % 9] for i in range(64)]
    assert found[:, 1].tolist() == [i % 2 for i in range(64)]
    assert found[:, 3].tolist() == [sum((i ^ 1) + 1001 * n for n in range(1, 7)) for i in range(64)]
