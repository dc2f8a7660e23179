"""Warp operations: lanes show each other values."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B32, PRED, U32, Builder
from outlast.server.drivers.emulated.lower.pause import arrived, exchange, meet, own_lane, seen
from outlast.server.drivers.emulated.lower.registry import lowers, scalar, word
from outlast.server.drivers.emulated.ptx.nodes import Instruction, Pair, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx


def _mask(b: Builder, ins: Instruction, position: int) -> str:
    """Return the mask of lanes that an instruction names."""
    if "sync" not in ins.opcode or len(ins.operands) <= position:
        raise InvalidPtx(f"{ins.text} names no lanes, as it has to since sm_70", ins.line)
    return b.value(ins.operands[position], B32)


@lowers("shfl", operands=(4, 5), words="sync up down bfly idx", types="b32")
def shuffle(b: Builder, ins: Instruction) -> None:
    """Lower ``shfl``: read a register of another lane."""
    mode = word(ins, "up", "down", "bfly", "idx")
    mask = _mask(b, ins, 4)
    offset, control = (b.value(ins.operands[i], U32) for i in (2, 3))
    exchange(b, b.resize(b.value(ins.operands[1], B32), 32, 64), mask)
    lane = own_lane(b)
    segment = b.op("and", "i32", b.op("lshr", "i32", control, 8), 31)
    inner = b.op("xor", "i32", segment, 31)
    lowest = b.op("and", "i32", lane, segment)
    clamp = b.op("and", "i32", b.op("and", "i32", control, 31), inner)
    limit = b.op("or", "i32", lowest, clamp)
    offset = b.op("and", "i32", offset, 31)
    if mode == "idx":
        source = b.op("or", "i32", lowest, b.op("and", "i32", offset, inner))
    else:
        source = b.op({"up": "sub", "down": "add", "bfly": "xor"}[mode], "i32", lane, offset)
    inside = b.op("icmp sge" if mode == "up" else "icmp sle", "i32", source, limit)
    source = b.select(inside, "i32", source, lane)
    value = seen(b, source)
    target = ins.operands[0]
    if isinstance(target, Pair):
        b.assign(target.second, PRED, inside)
        target = target.first
    b.assign(target, B32, b.cast("trunc", "i64", value, "i32"))


@lowers("vote", operands=(2, 3), words="sync all any uni ballot", types="pred b32")
def vote(b: Builder, ins: Instruction) -> None:
    """Lower ``vote``."""
    mode = word(ins, "ballot", "all", "any", "uni")
    mask = _mask(b, ins, 2)
    exchange(b, b.cast("zext", "i1", b.value(ins.operands[1], PRED), "i64"), mask)
    ballot = b.op("and", "i32", b.let("call i32 @get_ballot(ptr %w, i32 %lin)"), mask)
    if mode == "ballot":
        b.assign(ins.operands[0], B32, ballot)
        return
    present = b.op("and", "i32", arrived(b), mask)
    every = b.op("icmp eq", "i32", ballot, present)
    some = b.op("icmp ne", "i32", ballot, 0)
    same = b.op("or", "i1", every, b.op("xor", "i1", some, "true"))
    b.assign(ins.operands[0], PRED, {"all": every, "any": some, "uni": same}[mode])


@lowers("activemask", operands=1, types="b32")
def active_mask(b: Builder, ins: Instruction) -> None:
    """Lower ``activemask``: the lanes that meet here."""
    meet(b)
    b.assign(ins.operands[0], B32, arrived(b))


@lowers("redux", operands=3, words="sync add min max and or xor", types="u32 s32 b32")
def reduce(b: Builder, ins: Instruction) -> None:
    """Lower ``redux``: combine a value of every lane in the mask."""
    kind, name = scalar(ins), word(ins, "add", "min", "max", "and", "or", "xor")
    mask = _mask(b, ins, 2)
    exchange(b, b.resize(b.value(ins.operands[1], kind), 32, 64), mask)
    present = b.op("and", "i32", arrived(b), mask)
    neutral = _neutral(name, kind.signed)
    total = str(neutral)
    for lane in range(32):
        value = seen(b, lane)
        here = b.op("icmp ne", "i32", b.op("and", "i32", present, 1 << lane), 0)
        value = b.select(here, "i32", b.cast("trunc", "i64", value, "i32"), str(neutral))
        total = _combine(b, name, kind.signed, total, value)
    b.assign(ins.operands[0], kind, total)


def _neutral(name: str, signed: bool) -> int:
    if name == "min":
        return (1 << 31) - 1 if signed else -1
    if name == "max":
        return -(1 << 31) if signed else 0
    return -1 if name == "and" else 0


def _combine(b: Builder, name: str, signed: bool, first: str, second: str) -> str:
    if name in ("min", "max"):
        function = f"llvm.{'s' if signed else 'u'}{name}.i32"
        return b.intrinsic("i32", function, f"i32 {first}", f"i32 {second}")
    return b.op(name, "i32", first, second)


@lowers("match", operands=3, words="sync any all", types="b32 b64")
def match(b: Builder, ins: Instruction) -> None:
    """Lower ``match``: the lanes whose value is the same."""
    kind, mode = scalar(ins), word(ins, "any", "all")
    mask = _mask(b, ins, 2)
    own = b.value(ins.operands[1], kind)
    exchange(b, b.resize(own, kind.bits, 64), mask)
    present = b.op("and", "i32", arrived(b), mask)
    equal = b.op("and", "i32", _equal_lanes(b, own, kind), present)
    target = ins.operands[0]
    if mode == "any":
        b.assign(target, B32, equal)
        return
    every = b.op("icmp eq", "i32", equal, present)
    if isinstance(target, Pair):
        b.assign(target.second, PRED, every)
        target = target.first
    b.assign(target, B32, b.select(every, "i32", present, "0"))


def _equal_lanes(b: Builder, own: str, kind: Scalar) -> str:
    """Return the mask of lanes that have shown the thread's own value."""
    wide, mask = b.resize(own, kind.bits, 64), "0"
    for lane in range(32):
        same = b.cast("zext", "i1", b.op("icmp eq", "i64", seen(b, lane), wide), "i32")
        mask = b.op("or", "i32", mask, b.op("shl", "i32", same, lane))
    return mask
