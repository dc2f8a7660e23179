"""Moves, comparisons and choices."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import PRED, Builder
from outlast.server.drivers.emulated.lower.packed import pack, unpack
from outlast.server.drivers.emulated.lower.registry import (
    BITS,
    FLOATS,
    INTEGERS,
    SINGLE_OR_DOUBLE,
    any_scalar,
    lowers,
    scalar,
    word,
)
from outlast.server.drivers.emulated.lower.rounding import flush
from outlast.server.drivers.emulated.ptx.nodes import (
    SCALARS,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Scalar,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx

#: PTX comparison -> LLVM's for floats (ordered unless it ends with u).
_FLOAT_CONDITIONS = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
    "num": "ord",
    "nan": "uno",
}
_UNSIGNED_CONDITIONS = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_CONDITIONS = " ".join((*_FLOAT_CONDITIONS, *_UNSIGNED_CONDITIONS))
_LOGIC = ("and", "or", "xor")


@lowers("mov", operands=2, types=f"pred {BITS} b128 {INTEGERS} {SINGLE_OR_DOUBLE}")
def move(b: Builder, ins: Instruction) -> None:
    """Lower ``mov``, also packing and unpacking of vectors."""
    kind = SCALARS.get(ins.opcode[-1]) or scalar(ins)
    target, source = ins.operands[:2]
    if isinstance(target, Vector) or isinstance(source, Vector):
        _move_vector(b, ins, kind, target, source)
    elif isinstance(source, Immediate) and source.format:
        b.assign(target, kind, b.value(source, kind))
    else:
        b.assign(target, kind.raw, b.value(source, kind.raw))


def _move_vector(
    b: Builder, ins: Instruction, kind: Scalar, target: Operand, source: Operand
) -> None:
    t = kind.integer
    if isinstance(target, Vector) and isinstance(source, Vector):
        values = [b.value(item, kind.raw) for item in source.items]
        for item, value in zip(target.items, values, strict=False):
            b.assign(item, kind.raw, value)
        return
    count = len(target.items if isinstance(target, Vector) else source.items)  # type: ignore[union-attr]
    part = SCALARS.get(f"b{kind.bits // max(count, 1)}")
    if part is None or part.bits * count != kind.bits:
        raise InvalidPtx(f"{ins.text} of {count} parts", ins.line)
    if isinstance(source, Vector):
        packed = "0"
        for position, item in enumerate(source.items):
            wide = b.cast("zext", part.integer, b.value(item, part), t)
            packed = b.op("or", t, packed, b.op("shl", t, wide, position * part.bits))
        b.assign(target, kind.raw, packed)
    elif isinstance(target, Vector):
        value = b.value(source, kind.raw)
        for position, item in enumerate(target.items):
            shifted = b.op("lshr", t, value, position * part.bits)
            b.assign(item, part, b.cast("trunc", t, shifted, part.integer))


def _compare(b: Builder, ins: Instruction, kind: Scalar) -> tuple[str, ...]:
    """Return the outcomes of a comparison: one, or two of packed values."""
    first, second = (b.value(ins.operands[i], kind) for i in (1, 2))
    if kind.kind != "v":
        return (_compare_one(b, ins, kind, first, second),)
    pairs = zip(unpack(b, first, kind), unpack(b, second, kind), strict=True)
    return tuple(_compare_one(b, ins, kind.element, *pair) for pair in pairs)


def _compare_one(b: Builder, ins: Instruction, kind: Scalar, first: str, second: str) -> str:
    condition = ins.opcode[1]
    first, second = (flush(b, ins, value, kind) for value in (first, second))
    if kind.is_float:
        if condition not in _FLOAT_CONDITIONS:
            raise InvalidPtx(f"condition {condition} of floats", ins.line)
        return b.op(f"fcmp {_FLOAT_CONDITIONS[condition]}", kind.llvm, first, second)
    if condition in ("eq", "ne"):
        predicate = condition
    elif condition in _UNSIGNED_CONDITIONS:
        predicate = _UNSIGNED_CONDITIONS[condition]
    elif condition in ("lt", "le", "gt", "ge"):
        predicate = ("s" if kind.signed else "u") + condition
    else:
        raise InvalidPtx(f"condition {condition} of integers", ins.line)
    return b.op(f"icmp {predicate}", kind.integer, first, second)


def _combine(b: Builder, ins: Instruction, result: str) -> str:
    """Combine a comparison with the third source, if the opcode has a logic word."""
    for logic in _LOGIC:
        if logic in ins.opcode:
            if len(ins.operands) < 4:
                raise InvalidPtx(f"{ins.text} needs 4 operands", ins.line)
            return b.op(logic, "i1", result, b.value(ins.operands[3], PRED))
    return result


@lowers(
    "setp",
    operands=(3, 4),
    words=f"{_CONDITIONS} ftz and or xor",
    types=f"{BITS} {INTEGERS} {FLOATS}",
)
def set_predicate(b: Builder, ins: Instruction) -> None:
    """Lower ``setp``; the second destination gets the opposite, or the upper half's outcome."""
    results = _compare(b, ins, any_scalar(ins))
    target = ins.operands[0]
    second = results[1] if len(results) > 1 else b.op("xor", "i1", results[0], "true")
    if isinstance(target, Pair):
        values = _combine(b, ins, results[0]), _combine(b, ins, second)
        b.assign(target.first, PRED, values[0])
        b.assign(target.second, PRED, values[1])
    else:
        b.assign(target, PRED, _combine(b, ins, results[0]))


@lowers(
    "set",
    operands=(3, 4),
    words=f"{_CONDITIONS} ftz and or xor",
    types=f"{BITS} {INTEGERS} {FLOATS}",
)
def set_value(b: Builder, ins: Instruction) -> None:
    """Lower ``set``: all ones, or 1.0, for true."""
    kind, source = any_scalar(ins, -2), any_scalar(ins)
    results = [_combine(b, ins, result) for result in _compare(b, ins, source)]
    if len(results) > 1:
        b.assign(ins.operands[0], kind, _packed_outcomes(b, ins, kind, source, results))
        return
    operation = "uitofp" if kind.is_float else "sext"
    b.assign(ins.operands[0], kind, b.cast(operation, "i1", results[0], kind.llvm))


def _packed_outcomes(
    b: Builder, ins: Instruction, kind: Scalar, source: Scalar, results: list[str]
) -> str:
    if kind.bits != 32 or kind.is_float:
        raise InvalidPtx(f"{ins.text} needs a word as destination", ins.line)
    if kind.kind == "v":
        low, high = (b.cast("uitofp", "i1", result, source.element.llvm) for result in results)
        return pack(b, low, high, source)
    halves = [b.cast("zext", "i16", b.cast("sext", "i1", r, "i16"), "i32") for r in results]
    return b.op("or", "i32", halves[0], b.op("shl", "i32", halves[1], 16))


@lowers("selp", operands=4, types=f"{BITS} {INTEGERS} {SINGLE_OR_DOUBLE}")
def select(b: Builder, ins: Instruction) -> None:
    """Lower ``selp``."""
    kind = scalar(ins)
    first, second = (b.to_bits(b.value(ins.operands[i], kind), kind) for i in (1, 2))
    chosen = b.select(b.value(ins.operands[3], PRED), kind.integer, first, second)
    b.assign(ins.operands[0], kind.raw, chosen)


@lowers("slct", operands=4, words="ftz", types=f"{BITS} {INTEGERS} {SINGLE_OR_DOUBLE}")
def select_by_sign(b: Builder, ins: Instruction) -> None:
    """Lower ``slct``: the first operand if the third is not negative."""
    kind, tested = scalar(ins, -2), scalar(ins)
    first, second = (b.value(ins.operands[i], kind.raw) for i in (1, 2))
    value = flush(b, ins, b.value(ins.operands[3], tested), tested)
    if tested.is_float:
        condition = b.op("fcmp oge", tested.llvm, value, "0.0")
    else:
        condition = b.op("icmp sge", tested.integer, value, 0)
    b.assign(ins.operands[0], kind.raw, b.select(condition, kind.integer, first, second))


@lowers(
    "testp",
    operands=2,
    words="notanumber infinite finite number normal subnormal",
    types=SINGLE_OR_DOUBLE,
)
def test_property(b: Builder, ins: Instruction) -> None:
    """Lower ``testp``: the class of a float; zeros count as normal."""
    classes = {"notanumber": 3, "infinite": 516, "finite": 504, "number": 1020}
    classes |= {"normal": 360, "subnormal": 144}
    kind = scalar(ins)
    mask = classes[word(ins, *classes)]
    value = f"{kind.llvm} {b.value(ins.operands[1], kind)}"
    result = b.intrinsic("i1", f"llvm.is.fpclass.{kind.suffix}", value, f"i32 {mask}")
    b.assign(ins.operands[0], PRED, result)
