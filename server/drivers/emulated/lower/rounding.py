"""Rounding of floats: directed modes, subnormal numbers, saturation.

What a double holds exactly is rounded from it by comparing with the nearest number. Operations
whose exact result no double holds run under the processor's own rounding mode instead.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar

ROUNDINGS = "rn rz rm rp"
DIRECTED = ("rz", "rm", "rp")
F32 = SCALARS["f32"]
F64 = SCALARS["f64"]

#: LLVM's numbers of rounding modes.
_MODES = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}
_SUBNORMAL = 0x90  # LLVM's class mask


def directed(ins: Instruction) -> str:
    """Return the directed rounding of an opcode; empty for to-nearest."""
    return next((mode for mode in DIRECTED if mode in ins.opcode), "")


def widen(b: Builder, value: str, kind: Scalar) -> str:
    """Return a float as a double."""
    return value if kind.bits == 64 else b.cast("fpext", kind.llvm, value, "double")


def round_directed(b: Builder, wide: str, mode: str, kind: Scalar = F32) -> str:
    """Round a double downwards, upwards or towards zero."""
    narrow = b.to_bits(narrow_double(b, wide, kind), kind)
    back = widen(b, b.from_bits(narrow, kind), kind)
    above, below = (b.op(f"fcmp {c}", "double", back, wide) for c in ("ogt", "olt"))
    return _step(b, narrow, above, below, mode, kind)


def _step(b: Builder, bits: str, above: str, below: str, mode: str, kind: Scalar) -> str:
    """Move the bits of a nearest number that lies on the wrong side of the exact one."""
    t = kind.integer
    negative = b.op("icmp slt", t, bits, 0)
    positive = b.op("xor", "i1", negative, "true")
    if mode == "rm":
        wrong, shrink = above, positive
    elif mode == "rp":
        wrong, shrink = below, negative
    else:
        wrong, shrink = b.select(negative, "i1", below, above), "true"
    # One step towards zero is one less in the bits of either sign.
    moved = b.op("add", t, bits, b.select(shrink, t, "-1", "1"))
    # Rounding a result of zero outwards must give the smallest number of the other sign.
    largest = (1 << (kind.bits - 1)) - 1
    zero = b.op("icmp eq", t, b.op("and", t, bits, largest), 0)
    moved = b.select(zero, t, str(-largest) if mode == "rm" else "1", moved)
    return b.from_bits(b.select(wrong, t, moved, bits), kind)


def narrow_double(b: Builder, value: str, kind: Scalar) -> str:
    """Round a double to the nearest number of a type."""
    if kind.bits == 16:
        return small_from_double(b, value, kind)
    return value if kind.bits == 64 else b.cast("fptrunc", "double", value, kind.llvm)


def small_from_double(b: Builder, value: str, kind: Scalar) -> str:
    """Round a double to half or bfloat16 once: to odd in float, then to nearest."""
    narrow = round_directed(b, value, "rz")
    exact = b.op("fcmp ueq", "double", b.cast("fpext", "float", narrow, "double"), value)
    sticky = b.cast("zext", "i1", b.op("xor", "i1", exact, "true"), "i32")
    bits = b.op("or", "i32", b.cast("bitcast", "float", narrow, "i32"), sticky)
    odd = b.cast("bitcast", "i32", bits, "float")
    return b.cast("fptrunc", "float", odd, "half") if kind.name == "f16" else odd


def odd_sum(b: Builder, first: str, second: str, mode: str) -> str:
    """Add two doubles, rounding to odd, so that rounding again to float is exact."""
    total = b.op("fadd", "double", first, second)
    part = b.op("fsub", "double", total, first)
    rest = b.op("fsub", "double", first, b.op("fsub", "double", total, part))
    error = b.op("fadd", "double", rest, b.op("fsub", "double", second, part))
    bits = b.cast("bitcast", "double", total, "i64")
    even = b.op("icmp eq", "i64", b.op("and", "i64", bits, 1), 0)
    inexact = b.op("fcmp one", "double", error, "0.0")
    away = b.op("xor", "i64", bits, b.cast("bitcast", "double", error, "i64"))
    up = b.select(b.op("icmp sge", "i64", away, 0), "i64", "1", "-1")
    odd = b.op("add", "i64", bits, up)
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


def in_mode(b: Builder, operation: str, mode: str, *values: str) -> str:
    """Do an operation on doubles under a rounding mode of the processor."""
    name, count = f"{operation}.{mode}", len(values)
    names = [f"%x{i}" for i in range(count)]
    typed = ", ".join(f"double {value}" for value in names)
    intrinsic = f"llvm.experimental.constrained.{operation}.f64"
    kinds = ", ".join(["double"] * count)
    b.declarations.add("declare void @llvm.set.rounding(i32)")
    b.declarations.add(f"declare double @{intrinsic}({kinds}, metadata, metadata)")
    b.declarations.add(
        f"define internal double @{name}({typed}) noinline strictfp {{\n"
        f"  call void @llvm.set.rounding(i32 {_MODES[mode]}) strictfp\n"
        f"  %r = call double @{intrinsic}({typed},"
        ' metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp\n'
        f"  call void @llvm.set.rounding(i32 {_MODES['rn']}) strictfp\n"
        "  ret double %r\n}"
    )
    arguments = ", ".join(f"double {value}" for value in values)
    return b.let(f"call double @{name}({arguments})")


def flush(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Make a subnormal number a zero of its sign, if the opcode says ``.ftz``."""
    if "ftz" not in ins.opcode or kind.name not in ("f32", "f16"):
        return value
    name = f"llvm.is.fpclass.{kind.suffix}"
    small = b.intrinsic("i1", name, f"{kind.llvm} {value}", f"i32 {_SUBNORMAL}")
    sign = b.op("and", kind.integer, b.to_bits(value, kind), -(1 << (kind.bits - 1)))
    return b.select(small, kind.llvm, b.from_bits(sign, kind), value)


def finish(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Apply what the opcode says of a result: ``.ftz``, ``.sat`` and ``.relu``."""
    return clamp(b, ins, flush(b, ins, value, kind), kind)


def clamp(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Apply ``.sat`` and ``.relu``."""
    if "sat" in ins.opcode:  # to [0, 1]; NaN becomes 0
        value = float_call(b, kind, "maxnum", value, "0.0")
        value = float_call(b, kind, "minnum", value, "1.0")
    if "relu" in ins.opcode:  # NaN stays
        value = float_call(b, kind, "maximum", value, "0.0")
    return value


def float_call(b: Builder, kind: Scalar, function: str, *values: str) -> str:
    """Call an LLVM intrinsic; half goes through float, as the run time has no half functions."""
    if kind.name != "f16":
        typed = [f"{kind.llvm} {value}" for value in values]
        return b.intrinsic(kind.llvm, f"llvm.{function}.{kind.suffix}", *typed)
    wide = [f"float {_half_to_float(b, value)}" for value in values]
    return b.cast("fptrunc", "float", b.intrinsic("float", f"llvm.{function}.f32", *wide), "half")


def _half_to_float(b: Builder, value: str) -> str:
    return value if value in ("0.0", "1.0") else b.cast("fpext", "half", value, "float")
