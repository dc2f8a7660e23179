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
    return float_call(b, kind, "minnum", float_call(b, kind, "maxnum", value, "0.0"), "1.0")


def _odd_sum(b: Builder, first: str, second: str, mode: str) -> str:
    """Add two doubles, rounding to odd, so that rounding again to float is exact."""
    total = b.op("fadd", "double", first, second)
    part = b.op("fsub", "double", total, first)
    rest = b.op("fsub", "double", first, b.op("fsub", "double", total, part))
    error = b.op("fadd", "double", rest, b.op("fsub", "double", second, part))
    bits = b.cast("bitcast", "double", total, "i64")
    even = b.op("icmp eq", "i64", b.op("and", "i64", bits, 1), 0)
    inexact = b.op("fcmp one", "double", error, "0.0")
    away = b.op("xor", "i64", bits, b.cast("bitcast", "double", error, "i64"))
    step = b.select(b.op("icmp sge", "i64", away, 0), "i64", "1", "-1")
    odd = b.op("add", "i64", bits, step)
    bits = b.select(b.op("and", "i1", even, inexact), "i64", odd, bits)
    if mode == "rm":
        # An exact zero is negative unless both terms are positive zeros.
        signs = b.op(
            "or",
            "i64",
            b.cast("bitcast", "double", first, "i64"),
            b.cast("bitcast", "double", second, "i64"),
        )
        zero = b.op("fcmp oeq", "double", total, "0.0")
        signed = b.op("and", "i64", signs, -(1 << 63))
        bits = b.select(zero, "i64", signed, bits)
    return b.cast("bitcast", "i64", bits, "double")


def small_from_double(b: Builder, value: str, kind: Scalar) -> str:
    """Round a double to half or bfloat16 once: to odd in float, then to nearest."""
    narrow = round_directed(b, value, "rz")
    exact = b.op("fcmp ueq", "double", b.cast("fpext", "float", narrow, "double"), value)
    sticky = b.cast("zext", "i1", b.op("xor", "i1", exact, "true"), "i32")
    bits = b.op("or", "i32", b.cast("bitcast", "float", narrow, "i32"), sticky)
    odd = b.cast("bitcast", "i32", bits, "float")
    return b.cast("fptrunc", "float", odd, "half") if kind.name == "f16" else odd


def float_operation(b: Builder, ins: Instruction, operation: str) -> None:
    """Lower a two-operand float instruction."""
    kind = scalar(ins)
    mode = _rounding(ins, kind)
    first, second = (b.value(ins.operands[i], kind) for i in (1, 2))
    if mode:
        x, y = (b.cast("fpext", "float", value, "double") for value in (first, second))
        if operation == "fsub":
            y = b.let(f"fneg double {y}")
        if operation in ("fadd", "fsub"):
            wide = _odd_sum(b, x, y, mode)
        else:
            wide = b.op(operation, "double", x, y)
        result = round_directed(b, wide, mode)
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
        x, y, z = (b.cast("fpext", "float", value, "double") for value in values)
        product = b.op("fmul", "double", x, y)  # exact
        result = round_directed(b, _odd_sum(b, product, z, mode), mode)
    elif kind.bits == 16:
        x, y, z = (b.cast("fpext", kind.llvm, value, "double") for value in values)
        product = b.op("fmul", "double", x, y)  # exact
        result = small_from_double(b, _odd_sum(b, product, z, mode), kind)
    else:
        typed = [f"{kind.llvm} {value}" for value in values]
        result = b.intrinsic(kind.llvm, f"llvm.fma.{kind.suffix}", *typed)
    b.assign(ins.operands[0], kind, saturate(b, ins, kind, result))


def float_unary(b: Builder, ins: Instruction, function: str) -> None:
    """Lower a one-operand float instruction to an LLVM intrinsic."""
    kind = scalar(ins)
    if not kind.is_float:
        raise InvalidPtx(f"{ins.text} needs a float type", ins.line)
    result = float_call(b, kind, function, b.value(ins.operands[1], kind))
    b.assign(ins.operands[0], kind, result)


def float_call(b: Builder, kind: Scalar, function: str, *values: str) -> str:
    """Call an LLVM intrinsic; half goes through float, as the run time has no half functions."""
    if kind.name != "f16":
        typed = [f"{kind.llvm} {value}" for value in values]
        return b.intrinsic(kind.llvm, f"llvm.{function}.{kind.suffix}", *typed)
    wide = [f"float {b.cast('fpext', 'half', value, 'float')}" for value in values]
    return b.cast("fptrunc", "float", b.intrinsic("float", f"llvm.{function}.f32", *wide), "half")


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
        value = float_call(b, kind, "sqrt", value)
    b.assign(ins.operands[0], kind, b.op("fdiv", kind.llvm, "1.0", value))


@lowers("copysign", operands=3)
def copy_sign(b: Builder, ins: Instruction) -> None:
    """Lower ``copysign``: PTX names the sign first."""
    kind = scalar(ins)
    sign, value = (b.value(ins.operands[i], kind) for i in (1, 2))
    b.assign(ins.operands[0], kind, float_call(b, kind, "copysign", value, sign))
