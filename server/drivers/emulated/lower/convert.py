"""``cvt``: conversions between all scalar types, and packing of two values."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.packed import pack
from outlast.server.drivers.emulated.lower.registry import (
    FLOATS,
    INTEGERS,
    any_scalar,
    lowers,
    scalar,
)
from outlast.server.drivers.emulated.lower.rounding import (
    clamp,
    directed,
    float_call,
    flush,
    in_mode,
    odd_sum,
    round_directed,
    small_from_double,
    widen,
)
from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_WIDTHS = {"half": 16, "float": 32, "double": 64}


@lowers(
    "cvt",
    operands=(2, 4),
    words="rn rz rm rp rna rni rzi rmi rpi ftz sat relu pack",
    types=f"u8 s8 {INTEGERS} {FLOATS} tf32 b32",
)
def convert(b: Builder, ins: Instruction) -> None:
    """Lower ``cvt``."""
    target = any_scalar(ins, -2)
    if "pack" in ins.opcode:
        _pack_integers(b, ins)
    elif target.kind == "v":
        _pack_floats(b, ins, target)
    elif target.name == "tf32":
        _to_tf32(b, ins)
    else:
        _convert_one(b, ins, target)


def _convert_one(b: Builder, ins: Instruction, target: Scalar) -> None:
    source = scalar(ins)
    if target.kind == "p" or source.kind == "p" or len(ins.operands) != 2:
        raise InvalidPtx(f"{ins.text} is no conversion", ins.line)
    if "rna" in ins.opcode:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    value = _flush(b, ins, b.value(ins.operands[1], source), source)
    if source.is_float and target.is_float:
        result = _between_floats(b, ins, value, source, target)
    elif source.is_float:
        result = _float_to_integer(b, ins, value, source, target)
    elif target.is_float:
        result = _integer_to_float(b, ins, value, source, target)
    elif "sat" in ins.opcode:
        result = _saturating(b, value, source, target)
    else:
        result = b.resize(value, source.bits, target.bits, source.signed)
    b.assign(ins.operands[0], target, result)


def _flush(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Flush what ``.ftz`` means in a conversion: single-precision values alone."""
    return flush(b, ins, value, kind) if kind.name == "f32" else value


def _finish(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    return clamp(b, ins, _flush(b, ins, value, kind), kind)


def _to_integer_value(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Round to an integral number if the opcode has an integer rounding."""
    for mode, function in _TO_INTEGER.items():
        if mode in ins.opcode:
            return float_call(b, kind, function, value)
    return value


def _between_floats(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    value = _to_integer_value(b, ins, value, source)
    have, want = _WIDTHS[source.llvm], _WIDTHS[target.llvm]
    mode = directed(ins)
    if mode and (have > want or target.name == "bf16"):
        value = round_directed(b, widen(b, value, source), mode, target)
    elif have < want:
        value = b.cast("fpext", source.llvm, value, target.llvm)
    elif have == 64 and target.bits == 16:
        value = small_from_double(b, value, target)
    elif have > want:
        value = b.cast("fptrunc", source.llvm, value, target.llvm)
    return _finish(b, ins, value, target)


def _pack_floats(b: Builder, ins: Instruction, target: Scalar) -> None:
    """Convert two floats; the first one goes into the upper half."""
    source = scalar(ins)
    if source.name != "f32" or len(ins.operands) != 3:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    values = [_flush(b, ins, b.value(operand, source), source) for operand in ins.operands[1:]]
    high, low = (_between_floats(b, ins, value, source, target.element) for value in values)
    b.assign(ins.operands[0], target, pack(b, low, high, target))


def _to_tf32(b: Builder, ins: Instruction) -> None:
    """Keep ten bits of a float's fraction, rounded to the nearest, ties away from zero."""
    source, t = scalar(ins), "i32"
    if source.name != "f32" or "rna" not in ins.opcode:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    value = b.value(ins.operands[1], source)
    bits = b.to_bits(value, source)
    rounded = b.op("and", t, b.op("add", t, bits, 1 << 12), -1 << 13)
    finite = b.op("icmp ult", t, b.op("and", t, bits, 0x7FFFFFFF), 0x7F800000)
    b.assign(ins.operands[0], SCALARS["b32"], b.select(finite, t, rounded, bits))


def _float_to_integer(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    number = _to_integer_value(b, ins, value, source)
    name = "fptosi" if target.signed else "fptoui"
    function = f"llvm.{name}.sat.{target.integer}.{source.suffix}"
    result = b.intrinsic(target.integer, function, f"{source.llvm} {number}")
    if source.bits < 64 and target.bits < 64:
        return result  # NaN gives 0
    nan = b.op("fcmp uno", source.llvm, value, value)
    return b.select(nan, target.integer, str(1 << (target.bits - 1)), result)


def _integer_to_float(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    operation = "sitofp" if source.signed else "uitofp"
    mode = directed(ins)
    if target.bits == 16 and (mode or target.name == "bf16"):
        # Through a double, which holds every integer below a half's infinity.
        number = b.cast(operation, source.integer, value, "double")
        if mode:
            result = round_directed(b, number, mode, target)
        else:
            result = small_from_double(b, number, target)
    elif not mode:
        result = b.cast(operation, source.integer, value, target.llvm)
    elif source.bits == 64:
        result = _long_to_float(b, value, operation, mode, target)
    else:
        number = b.cast(operation, source.integer, value, "double")  # exact
        result = number if target.bits == 64 else round_directed(b, number, mode, target)
    return _finish(b, ins, result, target)


def _long_to_float(b: Builder, value: str, operation: str, mode: str, target: Scalar) -> str:
    """Convert 64-bit integers in a directed mode: both halves are exact, their sum is rounded."""
    low = b.op("and", "i64", value, 0xFFFFFFFF)
    high = b.op("xor", "i64", value, low)
    first, second = b.cast(operation, "i64", high, "double"), b.cast("uitofp", "i64", low, "double")
    if target.bits == 64:
        return in_mode(b, "fadd", mode, first, second)
    return round_directed(b, odd_sum(b, first, second, mode), mode, target)


def _saturating(b: Builder, value: str, source: Scalar, target: Scalar) -> str:
    """Clamp an integer to the range of another type, in 128 bits."""
    wide = b.resize(value, source.bits, 128, source.signed)
    low = -(1 << (target.bits - 1)) if target.signed else 0
    high = (1 << (target.bits - target.signed)) - 1
    wide = b.intrinsic("i128", "llvm.smax.i128", f"i128 {wide}", f"i128 {low}")
    wide = b.intrinsic("i128", "llvm.smin.i128", f"i128 {wide}", f"i128 {high}")
    return b.resize(wide, 128, target.bits)


def _pack_integers(b: Builder, ins: Instruction) -> None:
    """Lower ``cvt.pack``: two saturated numbers, below what a third operand has of them."""
    types = [SCALARS[word] for word in ins.opcode if word in SCALARS]
    if len(types) not in (2, 3) or len(ins.operands) != len(types) + 1:
        raise InvalidPtx(f"{ins.text} needs a type for each operand", ins.line)
    target, source = types[0], types[1]
    if source.name != "s32" or target.bits > 16 or target.kind not in "us":
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    packed = "0"
    for place, operand in enumerate((ins.operands[2], ins.operands[1])):
        part = _saturating(b, b.value(operand, source), source, target)
        part = b.op("shl", "i32", b.cast("zext", target.integer, part, "i32"), place * target.bits)
        packed = b.op("or", "i32", packed, part)
    word32 = SCALARS["b32"]
    if len(types) == 3:
        rest = b.value(ins.operands[3], word32)
        packed = b.op("or", "i32", packed, b.op("shl", "i32", rest, 2 * target.bits))
    b.assign(ins.operands[0], word32, packed)
