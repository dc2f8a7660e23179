"""Integer arithmetic, and operations that integers and floats share by name."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.floating import (
    change_sign,
    float_minimum,
    float_operation,
    fused_multiply_add,
)
from outlast.server.drivers.emulated.lower.registry import (
    FLOATS,
    INTEGERS,
    SIGNED,
    SINGLE_OR_DOUBLE,
    any_scalar,
    lowers,
    scalar,
    word,
)
from outlast.server.drivers.emulated.lower.rounding import ROUNDINGS
from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_FLOAT_WORDS = f"{ROUNDINGS} ftz sat"


def _double(kind: Scalar) -> Scalar:
    """Return the type of a full product."""
    if kind.bits == 64:
        return SCALARS["b128"]
    return SCALARS[f"{'s' if kind.signed else 'u'}{2 * kind.bits}"]


@lowers("add", "sub", operands=3, words=f"{_FLOAT_WORDS} cc", types=f"{INTEGERS} {FLOATS}")
def add(b: Builder, ins: Instruction) -> None:
    """Lower ``add`` and ``sub``."""
    kind, name = any_scalar(ins), ins.opcode[0]
    if kind.element.is_float:
        float_operation(b, ins, f"f{name}")
        return
    first, second = b.value(ins.operands[1], kind), b.value(ins.operands[2], kind)
    if "sat" in ins.opcode:
        b.assign(ins.operands[0], kind, _saturated(b, ins, kind, name, first, second))
    elif "cc" in ins.opcode:
        _carry(b, ins, kind, name, first, second, carry_in=False)
    else:
        b.assign(ins.operands[0], kind, b.op(name, kind.integer, first, second))


def _saturated(
    b: Builder, ins: Instruction, kind: Scalar, operation: str, first: str, second: str
) -> str:
    """Add or subtract 32-bit integers, staying in their range."""
    if kind.name != "s32":
        raise InvalidPtx(f"{ins.text} is for .s32 alone", ins.line)
    name = f"llvm.s{operation}.sat.i32"
    return b.intrinsic("i32", name, f"i32 {first}", f"i32 {second}")


@lowers("addc", "subc", operands=3, words="cc", types="u32 u64 s32 s64")
def add_with_carry(b: Builder, ins: Instruction) -> None:
    """Lower ``addc`` and ``subc``."""
    kind = scalar(ins)
    first, second = b.value(ins.operands[1], kind), b.value(ins.operands[2], kind)
    _carry(b, ins, kind, ins.opcode[0][:3], first, second, carry_in=True)


def _carry(
    b: Builder,
    ins: Instruction,
    kind: Scalar,
    operation: str,
    first: str,
    second: str,
    *,
    carry_in: bool,
) -> None:
    """Emit one step of an extended-precision chain; the carry lives in ``%carry``."""
    wide = f"i{kind.bits + 8}"
    x, y = (b.cast("zext", kind.integer, value, wide) for value in (first, second))
    result = b.op(operation, wide, x, y)
    if carry_in:
        flag = b.cast("zext", "i1", b.let("load i1, ptr %carry"), wide)
        result = b.op(operation, wide, result, flag)
    if "cc" in ins.opcode:
        carry = b.cast("trunc", wide, b.op("lshr", wide, result, kind.bits), "i1")
        b.emit(f"store i1 {carry}, ptr %carry")
    b.assign(ins.operands[0], kind, b.cast("trunc", wide, result, kind.integer))


def _product(b: Builder, ins: Instruction, kind: Scalar) -> tuple[str, Scalar]:
    """Return the full product of operands 1 and 2."""
    double = _double(kind)
    extend = "sext" if kind.signed else "zext"
    x, y = (
        b.cast(extend, kind.integer, b.value(ins.operands[i], kind), double.integer) for i in (1, 2)
    )
    return b.op("mul", double.integer, x, y), double


def _part(b: Builder, ins: Instruction, kind: Scalar) -> str:
    """Return the low or the high half of the product, as the opcode says."""
    if "hi" not in ins.opcode:
        x, y = (b.value(ins.operands[i], kind) for i in (1, 2))
        return b.op("mul", kind.integer, x, y)
    product, double = _product(b, ins, kind)
    high = b.op("lshr", double.integer, product, kind.bits)
    return b.cast("trunc", double.integer, high, kind.integer)


@lowers("mul", operands=3, words=f"{_FLOAT_WORDS} lo hi wide", types=f"{INTEGERS} {FLOATS}")
def multiply(b: Builder, ins: Instruction) -> None:
    """Lower ``mul``."""
    kind = any_scalar(ins)
    if kind.element.is_float:
        float_operation(b, ins, "fmul")
    elif word(ins, "wide", "lo", "hi") == "wide":
        product, double = _product(b, ins, kind)
        b.assign(ins.operands[0], double, product)
    else:
        b.assign(ins.operands[0], kind, _part(b, ins, kind))


@lowers(
    "mad", operands=4, words=f"{_FLOAT_WORDS} lo hi wide cc", types=f"{INTEGERS} {SINGLE_OR_DOUBLE}"
)
def multiply_add(b: Builder, ins: Instruction) -> None:
    """Lower ``mad``."""
    kind = any_scalar(ins)
    if kind.element.is_float:
        fused_multiply_add(b, ins)
    elif word(ins, "wide", "lo", "hi") == "wide":
        product, double = _product(b, ins, kind)
        total = b.op("add", double.integer, product, b.value(ins.operands[3], double))
        b.assign(ins.operands[0], double, total)
    elif "cc" in ins.opcode:
        part = _part(b, ins, kind)
        _carry(b, ins, kind, "add", part, b.value(ins.operands[3], kind), carry_in=False)
    else:
        part, term = _part(b, ins, kind), b.value(ins.operands[3], kind)
        if "sat" in ins.opcode:
            total = _saturated(b, ins, kind, "add", part, term)
        else:
            total = b.op("add", kind.integer, part, term)
        b.assign(ins.operands[0], kind, total)


@lowers("mul24", operands=3, words="lo hi", types="u32 s32")
@lowers("mad24", operands=4, words="lo hi sat", types="u32 s32")
def multiply_short(b: Builder, ins: Instruction) -> None:
    """Lower ``mul24`` and ``mad24``: 32 of the 48 bits that a product of 24-bit numbers has."""
    kind = scalar(ins)
    if kind.bits != 32 or kind.is_float:
        raise InvalidPtx(f"{ins.text} needs a 32-bit type", ins.line)
    factors = []
    for i in (1, 2):
        high = b.op("shl", "i32", b.value(ins.operands[i], kind), 8)
        short = b.op("ashr" if kind.signed else "lshr", "i32", high, 8)
        factors.append(b.resize(short, 32, 64, kind.signed))
    product = b.op("mul", "i64", *factors)
    if word(ins, "lo", "hi") == "hi":
        product = b.op("lshr", "i64", product, 16)
    result = b.cast("trunc", "i64", product, "i32")
    if ins.opcode[0] == "mad24":
        term = b.value(ins.operands[3], kind)
        if "sat" in ins.opcode:
            result = _saturated(b, ins, kind, "add", result, term)
        else:
            result = b.op("add", "i32", result, term)
    b.assign(ins.operands[0], kind, result)


@lowers("madc", operands=4, words="lo hi cc", types="u32 u64 s32 s64")
def multiply_add_with_carry(b: Builder, ins: Instruction) -> None:
    """Lower ``madc``."""
    kind = scalar(ins)
    part = _part(b, ins, kind)
    _carry(b, ins, kind, "add", part, b.value(ins.operands[3], kind), carry_in=True)


@lowers("rem", operands=3, types=INTEGERS)
@lowers(
    "div", operands=3, words=f"{ROUNDINGS} ftz approx full", types=f"{INTEGERS} {SINGLE_OR_DOUBLE}"
)
def divide(b: Builder, ins: Instruction) -> None:
    """Lower ``div`` and ``rem``; division by zero gives all ones, as on a GPU."""
    kind, name = scalar(ins), ins.opcode[0]
    if kind.is_float:
        if name == "rem":
            raise InvalidPtx(f"{ins.text} of a float", ins.line)
        float_operation(b, ins, "fdiv")
        return
    t = kind.integer
    first, second = b.value(ins.operands[1], kind), b.value(ins.operands[2], kind)
    zero = b.op("icmp eq", t, second, 0)
    safe = b.select(zero, t, "1", second)
    if kind.signed:
        # The one overflowing quotient, minimum / -1, wraps instead of trapping.
        minus = b.op("icmp eq", t, second, -1)
        low = b.op("icmp eq", t, first, str(-(1 << (kind.bits - 1))))
        safe = b.select(b.op("and", "i1", minus, low), t, "1", safe)
    result = b.op(f"{'s' if kind.signed else 'u'}{name}", t, first, safe)
    if name == "rem" and kind.signed:
        result = b.select(minus, t, "0", result)
    b.assign(ins.operands[0], kind, b.select(zero, t, "-1", result))


@lowers("min", "max", operands=3, words="ftz NaN xorsign abs", types=f"{INTEGERS} {FLOATS}")
def minimum(b: Builder, ins: Instruction) -> None:
    """Lower ``min`` and ``max``."""
    kind, name = any_scalar(ins), ins.opcode[0]
    if kind.element.is_float:
        float_minimum(b, ins, kind)
        return
    t = kind.integer
    x, y = (b.value(ins.operands[i], kind) for i in (1, 2))
    function = f"llvm.{'s' if kind.signed else 'u'}{name}.{t}"
    result = b.intrinsic(t, function, f"{t} {x}", f"{t} {y}")
    b.assign(ins.operands[0], kind, result)


@lowers("neg", operands=2, words="ftz", types=f"{SIGNED} {FLOATS}")
def negate(b: Builder, ins: Instruction) -> None:
    """Lower ``neg``."""
    kind = any_scalar(ins)
    if kind.element.is_float:
        change_sign(b, ins, kind)
        return
    value = b.value(ins.operands[1], kind)
    b.assign(ins.operands[0], kind, b.op("sub", kind.integer, "0", value))


@lowers("abs", operands=2, words="ftz", types=f"{SIGNED} {FLOATS}")
def absolute(b: Builder, ins: Instruction) -> None:
    """Lower ``abs``."""
    kind = any_scalar(ins)
    if kind.element.is_float:
        change_sign(b, ins, kind)
        return
    value = f"{kind.integer} {b.value(ins.operands[1], kind)}"
    result = b.intrinsic(kind.integer, f"llvm.abs.{kind.integer}", value, "i1 false")
    b.assign(ins.operands[0], kind, result)


@lowers("sad", operands=4, types=INTEGERS)
def absolute_difference(b: Builder, ins: Instruction) -> None:
    """Lower ``sad``: ``c + |a - b|``."""
    kind = scalar(ins)
    first, second, third = (b.value(ins.operands[i], kind) for i in (1, 2, 3))
    sign = "s" if kind.signed else "u"
    x, y = f"{kind.integer} {first}", f"{kind.integer} {second}"
    high = b.intrinsic(kind.integer, f"llvm.{sign}max.{kind.integer}", x, y)
    low = b.intrinsic(kind.integer, f"llvm.{sign}min.{kind.integer}", x, y)
    difference = b.op("sub", kind.integer, high, low)
    b.assign(ins.operands[0], kind, b.op("add", kind.integer, third, difference))


@lowers("dp4a", operands=4, types="u32 s32")
@lowers("dp2a", operands=4, words="lo hi", types="u32 s32")
def dot_product(b: Builder, ins: Instruction) -> None:
    """Lower ``dp4a`` and ``dp2a``: products of parts of words, added to an accumulator.

    ``dp4a`` has four bytes on both sides, ``dp2a`` two halves and two of four bytes.
    """
    word32 = SCALARS["b32"]
    first, second, total = (b.value(ins.operands[i], word32) for i in (1, 2, 3))
    kinds = scalar(ins, -2), scalar(ins, -1)
    four = ins.opcode[0] == "dp4a"
    width = 8 if four else 16
    start = 16 if not four and word(ins, "lo", "hi") == "hi" else 0
    for part in range(4 if four else 2):
        x = _extract(b, first, width * part, width, kinds[0])
        y = _extract(b, second, start + 8 * part, 8, kinds[1])
        total = b.op("add", "i32", total, b.op("mul", "i32", x, y))
    b.assign(ins.operands[0], word32, total)


def _extract(b: Builder, value: str, start: int, width: int, kind: Scalar) -> str:
    """Return a part of a 32-bit word as a 32-bit number."""
    narrow = b.cast("trunc", "i32", b.op("lshr", "i32", value, start), f"i{width}")
    return b.cast("sext" if kind.signed else "zext", f"i{width}", narrow, "i32")


@lowers("vabsdiff2", "vabsdiff4", operands=4, words="add", types="u32 s32")
def absolute_differences(b: Builder, ins: Instruction) -> None:
    """Lower ``vabsdiff``: distances of halves or bytes, side by side or added to a number."""
    kinds = [SCALARS[part] for part in ins.opcode if part in SCALARS]
    if [kind.bits for kind in kinds] != [32, 32, 32] or kinds[1] != kinds[2]:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    word32, count = SCALARS["b32"], int(ins.opcode[0][-1])
    width, kind = 32 // count, kinds[1]
    first, second = (b.value(ins.operands[i], word32) for i in (1, 2))
    total = b.value(ins.operands[3], word32) if "add" in ins.opcode else "0"
    for part in range(count):
        x, y = (_extract(b, value, width * part, width, kind) for value in (first, second))
        distance = b.intrinsic("i32", "llvm.abs.i32", f"i32 {b.op('sub', 'i32', x, y)}", "i1 false")
        if "add" in ins.opcode:
            total = b.op("add", "i32", total, distance)
        else:
            total = b.op("or", "i32", total, b.op("shl", "i32", distance, width * part))
    b.assign(ins.operands[0], word32, total)
