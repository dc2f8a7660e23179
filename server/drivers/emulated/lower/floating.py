"""Floating-point arithmetic.

Approximate instructions give the exact result rounded, not the hardware's approximation.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.packed import assign_mapped
from outlast.server.drivers.emulated.lower.registry import (
    FLOATS,
    SINGLE_OR_DOUBLE,
    SMALL_FLOATS,
    any_scalar,
    lowers,
    scalar,
)
from outlast.server.drivers.emulated.lower.rounding import (
    ROUNDINGS,
    directed,
    finish,
    float_call,
    flush,
    in_mode,
    narrow_double,
    odd_sum,
    round_directed,
    widen,
)
from outlast.server.drivers.emulated.ptx.nodes import Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

#: Computes a result from a type and values of it.
Function = Callable[..., str]


def rounding(ins: Instruction, kind: Scalar) -> str:
    """Return the directed rounding of an opcode; empty for to-nearest."""
    mode = directed(ins)
    if mode and kind.bits < 32:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    return mode


def float_kind(ins: Instruction) -> Scalar:
    """Return the type of an instruction on floats, which may be packed."""
    kind = any_scalar(ins)
    if not kind.element.is_float:
        raise InvalidPtx(f"{ins.text} needs a float type", ins.line)
    return kind


def assign_float(b: Builder, ins: Instruction, kind: Scalar, function: Function) -> None:
    """Compute a result from the sources, with what the opcode says of both."""

    def compute(element: Scalar, *values: str) -> str:
        inputs = [flush(b, ins, value, element) for value in values]
        return finish(b, ins, function(element, *inputs), element)

    assign_mapped(b, ins, kind, compute)


def float_operation(b: Builder, ins: Instruction, operation: str) -> None:
    """Lower a two-operand float instruction."""
    kind = float_kind(ins)
    mode = rounding(ins, kind.element)

    def compute(element: Scalar, first: str, second: str) -> str:
        if not mode:
            return b.op(operation, element.llvm, first, second)
        if element.bits == 64:
            return in_mode(b, operation, mode, first, second)
        x, y = (widen(b, value, element) for value in (first, second))
        if operation not in ("fadd", "fsub"):
            return round_directed(b, b.op(operation, "double", x, y), mode)
        if operation == "fsub":
            y = b.let(f"fneg double {y}")
        return round_directed(b, odd_sum(b, x, y, mode), mode)

    assign_float(b, ins, kind, compute)


@lowers("fma", operands=4, words=f"{ROUNDINGS} ftz sat relu", types=FLOATS)
def fused_multiply_add(b: Builder, ins: Instruction) -> None:
    """Lower ``fma``, and ``mad`` of floats."""
    kind = float_kind(ins)
    mode = rounding(ins, kind.element)

    def compute(element: Scalar, *values: str) -> str:
        if element.bits == 64 and mode:
            return in_mode(b, "fma", mode, *values)
        if element.bits >= 32 and not mode:
            return float_call(b, element, "fma", *values)
        x, y, z = (widen(b, value, element) for value in values)
        total = odd_sum(b, b.op("fmul", "double", x, y), z, mode)  # the product is exact
        return round_directed(b, total, mode) if mode else narrow_double(b, total, element)

    assign_float(b, ins, kind, compute)


@lowers("sqrt", operands=2, words=f"approx {ROUNDINGS} ftz", types=SINGLE_OR_DOUBLE)
def square_root(b: Builder, ins: Instruction) -> None:
    """Lower ``sqrt``."""
    kind = float_kind(ins)
    mode = rounding(ins, kind)

    def compute(element: Scalar, value: str) -> str:
        if mode and element.bits == 64:
            return in_mode(b, "sqrt", mode, value)
        if mode:
            wide = b.intrinsic("double", "llvm.sqrt.f64", f"double {widen(b, value, element)}")
            return round_directed(b, wide, mode)
        return float_call(b, element, "sqrt", value)

    assign_float(b, ins, kind, compute)


@lowers("rcp", operands=2, words=f"approx {ROUNDINGS} ftz", types=SINGLE_OR_DOUBLE)
def reciprocal(b: Builder, ins: Instruction) -> None:
    """Lower ``rcp``."""
    kind = float_kind(ins)
    mode = rounding(ins, kind)

    def compute(element: Scalar, value: str) -> str:
        if mode and element.bits == 64:
            return in_mode(b, "fdiv", mode, "1.0", value)
        if mode:
            quotient = b.op("fdiv", "double", "1.0", widen(b, value, element))
            return round_directed(b, quotient, mode)
        return b.op("fdiv", element.llvm, "1.0", value)

    assign_float(b, ins, kind, compute)


@lowers("rsqrt", operands=2, words="approx ftz", types=SINGLE_OR_DOUBLE)
def reciprocal_square_root(b: Builder, ins: Instruction) -> None:
    """Lower ``rsqrt``."""

    def compute(element: Scalar, value: str) -> str:
        return b.op("fdiv", element.llvm, "1.0", float_call(b, element, "sqrt", value))

    assign_float(b, ins, float_kind(ins), compute)


_FUNCTIONS = {"sin": "sin", "cos": "cos", "ex2": "exp2", "lg2": "log2"}


@lowers(*_FUNCTIONS, operands=2, words="approx ftz", types=f"f32 {SMALL_FLOATS}")
def function(b: Builder, ins: Instruction) -> None:
    """Lower exponentials and the circular functions."""
    name = _FUNCTIONS[ins.opcode[0]]
    assign_float(b, ins, float_kind(ins), lambda kind, value: float_call(b, kind, name, value))


@lowers("tanh", operands=2, words="approx", types=f"f32 {SMALL_FLOATS}")
def hyperbolic_tangent(b: Builder, ins: Instruction) -> None:
    """Lower ``tanh``."""

    def compute(element: Scalar, value: str) -> str:
        if element.bits == 64:
            raise InvalidPtx(f"{ins.text} needs a single-precision type", ins.line)
        if element.name != "f16":
            return b.intrinsic("float", "tanhf", f"float {value}")
        wide = b.cast("fpext", "half", value, "float")
        return b.cast("fptrunc", "float", b.intrinsic("float", "tanhf", f"float {wide}"), "half")

    assign_float(b, ins, float_kind(ins), compute)


@lowers("copysign", operands=3, types=SINGLE_OR_DOUBLE)
def copy_sign(b: Builder, ins: Instruction) -> None:
    """Lower ``copysign``: PTX names the sign first."""
    kind = scalar(ins)
    sign, value = (b.value(ins.operands[i], kind) for i in (1, 2))
    b.assign(ins.operands[0], kind, float_call(b, kind, "copysign", value, sign))


def float_minimum(b: Builder, ins: Instruction, kind: Scalar) -> None:
    """Lower ``min`` and ``max`` of floats."""
    name = ins.opcode[0]
    intrinsic = f"{name}imum{'' if 'NaN' in ins.opcode else 'num'}"

    def compute(element: Scalar, first: str, second: str) -> str:
        if "xorsign" not in ins.opcode:
            return float_call(b, element, intrinsic, first, second)
        t, sign = element.integer, 1 << (element.bits - 1)
        x, y = (b.to_bits(value, element) for value in (first, second))
        sizes = (b.from_bits(b.op("and", t, v, sign - 1), element) for v in (x, y))
        result = b.to_bits(float_call(b, element, intrinsic, *sizes), element)
        signs = b.op("and", t, b.op("xor", t, x, y), -sign)
        return b.from_bits(b.op("or", t, b.op("and", t, result, sign - 1), signs), element)

    assign_float(b, ins, kind, compute)


def change_sign(b: Builder, ins: Instruction, kind: Scalar) -> None:
    """Lower ``neg`` and ``abs`` of floats: only the sign's bit changes."""

    def compute(element: Scalar, value: str) -> str:
        t, sign = element.integer, 1 << (element.bits - 1)
        bits = b.to_bits(flush(b, ins, value, element), element)
        if ins.opcode[0] == "neg":
            return b.from_bits(b.op("xor", t, bits, -sign), element)
        return b.from_bits(b.op("and", t, bits, sign - 1), element)

    assign_mapped(b, ins, kind, compute)
