"""Integer arithmetic, and operations that integers and floats share by name."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.floating import (
    ROUNDINGS,
    float_call,
    float_fma,
    float_operation,
    float_unary,
)
from outlast.server.drivers.emulated.lower.registry import lowers, scalar, word
from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_FLOAT_WORDS = f"{ROUNDINGS} ftz sat"


def _double(kind: Scalar) -> Scalar:
    """Return the type of a full product."""
    if kind.bits == 64:
        return SCALARS["b128"]
    return SCALARS[f"{'s' if kind.signed else 'u'}{2 * kind.bits}"]


@lowers("add", "sub", operands=3, words=f"{_FLOAT_WORDS} cc")
def add(b: Builder, ins: Instruction) -> None:
    """Lower ``add`` and ``sub``."""
    kind, name = scalar(ins), ins.opcode[0]
    if kind.is_float:
        float_operation(b, ins, f"f{name}")
        return
    if "sat" in ins.opcode:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    first, second = b.value(ins.operands[1], kind), b.value(ins.operands[2], kind)
    if "cc" in ins.opcode:
        _carry(b, ins, kind, name, first, second, carry_in=False)
    else:
        b.assign(ins.operands[0], kind, b.op(name, kind.integer, first, second))


@lowers("addc", "subc", operands=3, words="cc")
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


@lowers("mul", operands=3, words=f"{_FLOAT_WORDS} lo hi wide")
def multiply(b: Builder, ins: Instruction) -> None:
    """Lower ``mul``."""
    kind = scalar(ins)
    if kind.is_float:
        float_operation(b, ins, "fmul")
    elif word(ins, "wide", "lo", "hi") == "wide":
        product, double = _product(b, ins, kind)
        b.assign(ins.operands[0], double, product)
    else:
        b.assign(ins.operands[0], kind, _part(b, ins, kind))


@lowers("mad", operands=4, words=f"{_FLOAT_WORDS} lo hi wide cc")
def multiply_add(b: Builder, ins: Instruction) -> None:
    """Lower ``mad``."""
    kind = scalar(ins)
    if kind.is_float:
        float_fma(b, ins)
    elif word(ins, "wide", "lo", "hi") == "wide":
        product, double = _product(b, ins, kind)
        total = b.op("add", double.integer, product, b.value(ins.operands[3], double))
        b.assign(ins.operands[0], double, total)
    elif "cc" in ins.opcode:
        part = _part(b, ins, kind)
        _carry(b, ins, kind, "add", part, b.value(ins.operands[3], kind), carry_in=False)
    else:
        part = _part(b, ins, kind)
        total = b.op("add", kind.integer, part, b.value(ins.operands[3], kind))
        b.assign(ins.operands[0], kind, total)


@lowers("madc", operands=4, words="lo hi cc")
def multiply_add_with_carry(b: Builder, ins: Instruction) -> None:
    """Lower ``madc``."""
    kind = scalar(ins)
    part = _part(b, ins, kind)
    _carry(b, ins, kind, "add", part, b.value(ins.operands[3], kind), carry_in=True)


@lowers("div", "rem", operands=3, words=f"{_FLOAT_WORDS} approx full")
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


@lowers("min", "max", operands=3, words="ftz NaN xorsign abs")
def minimum(b: Builder, ins: Instruction) -> None:
    """Lower ``min`` and ``max``."""
    kind, name = scalar(ins), ins.opcode[0]
    if "xorsign" in ins.opcode:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    x, y = (b.value(ins.operands[i], kind) for i in (1, 2))
    if kind.is_float:
        function = f"{name}imum{'' if 'NaN' in ins.opcode else 'num'}"
        result = float_call(b, kind, function, x, y)
    else:
        t = kind.integer
        function = f"llvm.{'s' if kind.signed else 'u'}{name}.{t}"
        result = b.intrinsic(t, function, f"{t} {x}", f"{t} {y}")
    b.assign(ins.operands[0], kind, result)


@lowers("neg", operands=2, words="ftz")
def negate(b: Builder, ins: Instruction) -> None:
    """Lower ``neg``."""
    kind = scalar(ins)
    value = b.value(ins.operands[1], kind)
    text = f"fneg {kind.llvm} {value}" if kind.is_float else f"sub {kind.integer} 0, {value}"
    b.assign(ins.operands[0], kind, b.let(text))


@lowers("abs", operands=2, words="ftz")
def absolute(b: Builder, ins: Instruction) -> None:
    """Lower ``abs``."""
    kind = scalar(ins)
    if kind.is_float:
        float_unary(b, ins, "fabs")
        return
    value = f"{kind.integer} {b.value(ins.operands[1], kind)}"
    result = b.intrinsic(kind.integer, f"llvm.abs.{kind.integer}", value, "i1 false")
    b.assign(ins.operands[0], kind, result)


@lowers("sad", operands=4)
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


@lowers("dp4a", operands=4)
def dot_product(b: Builder, ins: Instruction) -> None:
    """Lower ``dp4a``: four byte products added to an accumulator."""
    word32 = SCALARS["b32"]
    first, second, total = (b.value(ins.operands[i], word32) for i in (1, 2, 3))
    kinds = scalar(ins, -2), scalar(ins, -1)
    for byte in range(4):
        factors = []
        for value, kind in zip((first, second), kinds, strict=True):
            shifted = b.op("lshr", "i32", value, 8 * byte)
            narrow = b.cast("trunc", "i32", shifted, "i8")
            factors.append(b.cast("sext" if kind.signed else "zext", "i8", narrow, "i32"))
        total = b.op("add", "i32", total, b.op("mul", "i32", *factors))
    b.assign(ins.operands[0], word32, total)
