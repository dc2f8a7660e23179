"""Many PTX instructions in one kernel, each on the inputs of every thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

THREADS = 128
BITS = {"h": 16, "r": 32, "f": 32, "d": 64, "g": 64}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
#: Instruction, type of its result, types of its sources.
Row = tuple[str, str, list[str]]


def register(kind: str) -> str:
    """Return the letter of the registers that hold a type."""
    if kind in ("f16x2", "bf16x2"):
        return "r"
    if kind in ("f16", "bf16"):
        return "h"
    if kind[0] == "f":
        return "f" if kind == "f32" else "g"
    return {16: "h", 32: "r", 64: "d"}[int(kind[1:])]


def load(letter: str, index: int) -> list[str]:
    """Return the lines that put input ``index`` into register ``index``."""
    lines = ["shr.u64 %i3, %i2, 32;"] if index == 3 else []
    bits, name = BITS[letter], f"%{letter}{index}"
    if bits == 64:
        return [*lines, f"mov.b64 {name}, %i{index};"]
    lines.append(f"cvt.u32.u64 %t, %i{index};")
    if bits == 32:
        return [*lines, f"mov.b32 {name}, %t;"]
    return [*lines, "cvt.u16.u32 %q, %t;", f"mov.b16 {name}, %q;"]


def store(letter: str) -> list[str]:
    """Return the lines that widen register 9 to the output."""
    if BITS[letter] == 64:
        return [f"mov.b64 %o, %{letter}9;"]
    if BITS[letter] == 32:
        return [f"mov.b32 %t, %{letter}9;", "cvt.u64.u32 %o, %t;"]
    return [f"mov.b16 %q, %{letter}9;", "cvt.u64.u16 %o, %q;"]


def lines_of(instruction: str, result: str, sources: list[str], row: int) -> list[str]:
    """Return the PTX that runs one instruction and stores its output."""
    name, _, constant = instruction.partition(":")
    letters = [register(kind) for kind in sources]
    lines = [line for i, letter in enumerate(letters) for line in load(letter, i)]
    operands = [f"%{letter}{i}" for i, letter in enumerate(letters)]
    given = ", ".join([*operands, constant] if constant else operands)
    if result == "pred":
        lines += [f"{name} %p9, {given};", "selp.u64 %o, 1, 0, %p9;"]
    elif result == "preds":
        lines += [f"{name} %p9|%p8, {given};", "selp.u64 %o, 1, 0, %p9;"]
        lines += ["selp.u64 %i3, 2, 0, %p8;", "or.b64 %o, %o, %i3;"]
    else:
        letter = register(result)
        lines += [f"{name} %{letter}9, {given};", *store(letter)]
    return [*lines, f"st.global.b64 [%x2+{row * 8 * THREADS}], %o;"]


def ptx_of(rows: Iterable[Row]) -> str:
    """Return a module whose kernel ``all(inputs, outputs)`` runs every row."""
    body = [line for number, row in enumerate(rows) for line in lines_of(*row, number)]
    reads = [f"ld.global.b64 %i{i}, [%x1+{i * 8 * THREADS}];" for i in range(3)]
    return "\n".join(
        [
            ".version 8.0\n.target sm_80\n.address_size 64",
            ".visible .entry all(.param .u64 inputs, .param .u64 outputs)\n{",
            ".reg .pred %p<10>; .reg .b16 %h<10>; .reg .b16 %q; .reg .b32 %r<10>; .reg .b32 %t;",
            ".reg .b64 %d<10>; .reg .f32 %f<10>; .reg .f64 %g<10>; .reg .b64 %i<4>;",
            ".reg .b64 %x<3>; .reg .b64 %o;",
            "mov.u32 %t, %tid.x; mul.wide.u32 %x0, %t, 8;",
            "ld.param.u64 %x1, [inputs]; add.u64 %x1, %x1, %x0;",
            "ld.param.u64 %x2, [outputs]; add.u64 %x2, %x2, %x0;",
            *reads,
            *body,
            "ret;\n}",
        ]
    )


def rows_of(table: Path) -> list[Row]:
    """Return the rows of a file of instructions with their outputs."""
    with np.load(table) as file:
        columns = (file[name] for name in ("instructions", "results", "sources"))
        return [
            (str(name), str(result), str(sources).split())
            for name, result, sources in zip(*columns, strict=True)
        ]


def is_nan(values: NDArray[np.uint64], kind: str) -> NDArray[np.bool_]:
    """Return which outputs are NaN."""
    if kind in ("f16x2", "bf16x2"):
        low, high = (is_nan(values >> np.uint64(shift), kind[:-2]) for shift in (0, 16))
        return low | high
    if kind == "bf16":
        return is_nan((values & np.uint64(0xFFFF)) << np.uint64(16), "f32")
    if kind not in FLOATS:
        return np.zeros(len(values), bool)
    width = np.dtype(FLOATS[kind]).itemsize
    narrow = values.view(np.uint8).reshape(-1, 8)[:, :width].copy()
    return np.isnan(narrow.view(FLOATS[kind]).ravel())
