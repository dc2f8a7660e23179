"""Floating-point arithmetic.

Approximate instructions give the exact result rounded, not the hardware's approximation;
``.ftz`` keeps subnormal numbers. Directed rounding of f32 goes through f64.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.registry import lowers, scalar
from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

ROUNDINGS = "rn rz rm rp"
_DIRECTED = ("rz", "rm", "rp")


def _rounding(ins: Instruction, kind: Scalar) -> str:
    """Return the directed rounding of an opcode; empty for to-nearest."""
    for mode in _DIRECTED:
        if mode in ins.opcode:
            if kind.name != "f32":
                raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
            return mode
    return ""


def round_directed(b: Builder, wide: str, mode: str) -> str:
    """Round a double to float downwards, upwards or towards zero."""
    narrow = b.cast("fptrunc", "double", wide, "float")
    back = b.cast("fpext", "float", narrow, "double")
    bits = b.cast("bitcast", "float", narrow, "i32")
    above, below = (b.op(f"fcmp {c}", "double", back, wide) for c in ("ogt", "olt"))
    negative = b.op("icmp slt", "i32", bits, 0)
    positive = b.op("xor", "i1", negative, "true")
    if mode == "rm":
        wrong, shrink = above, positive
    elif mode == "rp":
        wrong, shrink = below, negative
    else:
        wrong, shrink = b.select(negative, "i1", below, above), "true"
    # One step towards zero is one less in the bits of either sign.
    step = b.select(shrink, "i32", "-1", "1")
    moved = b.op("add", "i32", bits, step)
    # Rounding a result of zero outwards must give the smallest number of the other sign.
    zero = b.op("icmp eq", "i32", b.op("and", "i32", bits, 0x7FFFFFFF), 0)
    smallest = str(-0x7FFFFFFF) if mode == "rm" else "1"
    moved = b.select(zero, "i32", smallest, moved)
    return b.cast("bitcast", "i32", b.select(wrong, "i32", moved, bits), "float")


def saturate(b: Builder, ins: Instruction, kind: Scalar, value: str) -> str:
    """Clamp to [0, 1] if the opcode says ``.sat``; NaN becomes 0."""
    if "sat" not in ins.opcode:
        return value
    t = kind.llvm
    low = b.intrinsic(t, f"llvm.maxnum.{kind.suffix}", f"{t} {value}", f"{t} 0.0")
    return b.intrinsic(t, f"llvm.minnum.{kind.suffix}", f"{t} {low}", f"{t} 1.0")


def float_operation(b: Builder, ins: Instruction, operation: str) -> None:
    """Lower a two-operand float instruction."""
    kind = scalar(ins)
    mode = _rounding(ins, kind)
    first, second = (b.value(ins.operands[i], kind) for i in (1, 2))
    if mode:
        x, y = (b.cast("fpext", "float", value, "double") for value in (first, second))
        result = round_directed(b, b.op(operation, "double", x, y), mode)
    else:
        result = b.op(operation, kind.llvm, first, second)
    b.assign(ins.operands[0], kind, saturate(b, ins, kind, result))


@lowers("fma", operands=4, words=f"{ROUNDINGS} ftz sat")
def fused_multiply_add(b: Builder, ins: Instruction) -> None:
    """Lower ``fma``."""
    float_fma(b, ins)


def float_fma(b: Builder, ins: Instruction) -> None:
    """Lower a fused multiply-add of floats."""
    kind = scalar(ins)
    if not kind.is_float:
        raise InvalidPtx(f"{ins.text} of integers", ins.line)
    mode = _rounding(ins, kind)
    values = [b.value(ins.operands[i], kind) for i in (1, 2, 3)]
    if mode:
        wide = [f"double {b.cast('fpext', 'float', value, 'double')}" for value in values]
        result = round_directed(b, b.intrinsic("double", "llvm.fma.f64", *wide), mode)
    else:
        typed = [f"{kind.llvm} {value}" for value in values]
        result = b.intrinsic(kind.llvm, f"llvm.fma.{kind.suffix}", *typed)
    b.assign(ins.operands[0], kind, saturate(b, ins, kind, result))


def float_unary(b: Builder, ins: Instruction, function: str) -> None:
    """Lower a one-operand float instruction to an LLVM intrinsic."""
    kind = scalar(ins)
    if not kind.is_float:
        raise InvalidPtx(f"{ins.text} needs a float type", ins.line)
    value = f"{kind.llvm} {b.value(ins.operands[1], kind)}"
    b.assign(ins.operands[0], kind, b.intrinsic(kind.llvm, f"llvm.{function}.{kind.suffix}", value))


_FUNCTIONS = {"sqrt": "sqrt", "sin": "sin", "cos": "cos", "ex2": "exp2", "lg2": "log2"}


@lowers(*_FUNCTIONS, operands=2, words="approx rn ftz")
def function(b: Builder, ins: Instruction) -> None:
    """Lower square roots, exponentials and the circular functions."""
    float_unary(b, ins, _FUNCTIONS[ins.opcode[0]])


@lowers("tanh", operands=2, words="approx")
def hyperbolic_tangent(b: Builder, ins: Instruction) -> None:
    """Lower ``tanh``."""
    kind, single = scalar(ins), SCALARS["f32"]
    value = b.value(ins.operands[1], kind)
    if kind.name == "f16":
        value = b.cast("fpext", "half", value, "float")
    result = b.intrinsic("float", "tanhf", f"float {value}")
    if kind.name == "f16":
        result = b.cast("fptrunc", "float", result, "half")
    elif kind.llvm != single.llvm:
        raise InvalidPtx(f"{ins.text} needs a single-precision type", ins.line)
    b.assign(ins.operands[0], kind, result)


@lowers("rcp", "rsqrt", operands=2, words="approx rn ftz")
def reciprocal(b: Builder, ins: Instruction) -> None:
    """Lower ``rcp`` and ``rsqrt``."""
    kind = scalar(ins)
    if not kind.is_float:
        raise InvalidPtx(f"{ins.text} needs a float type", ins.line)
    value = b.value(ins.operands[1], kind)
    if ins.opcode[0] == "rsqrt":
        value = b.intrinsic(kind.llvm, f"llvm.sqrt.{kind.suffix}", f"{kind.llvm} {value}")
    b.assign(ins.operands[0], kind, b.op("fdiv", kind.llvm, "1.0", value))


@lowers("copysign", operands=3)
def copy_sign(b: Builder, ins: Instruction) -> None:
    """Lower ``copysign``: PTX names the sign first."""
    kind = scalar(ins)
    sign, value = (f"{kind.llvm} {b.value(ins.operands[i], kind)}" for i in (1, 2))
    result = b.intrinsic(kind.llvm, f"llvm.copysign.{kind.suffix}", value, sign)
    b.assign(ins.operands[0], kind, result)
