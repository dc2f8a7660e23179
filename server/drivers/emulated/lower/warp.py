"""Barriers and warp operations: the places where a thread pauses."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B32, PRED, U32, Builder
from outlast.server.drivers.emulated.lower.registry import lowers, scalar, word
from outlast.server.drivers.emulated.ptx.nodes import Immediate, Instruction, Pair
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx
from outlast.server.drivers.emulated.runtime import AT_BARRIER, AT_WARP


def _pause(b: Builder, state: int) -> None:
    """Return to the scheduler; go on when it resumes the thread."""
    resumed = b.new_label()
    b.emit(f"call void @set_state(ptr %w, i32 %lin, i32 {state})")
    answer = b.let("call i8 @llvm.coro.suspend(token none, i1 false)")
    b.emit(f"switch i8 {answer}, label %suspend [ i8 0, label %{resumed} i8 1, label %suspend ]")
    b.ended = True
    b.place(resumed)


def _exchange(b: Builder, value: str) -> None:
    """Show a 64-bit value to the other lanes of the warp."""
    b.emit(f"call void @put_value(ptr %w, i32 %lin, i64 {value})")
    _pause(b, AT_WARP)


@lowers("bar", "barrier", operands=1, words="sync warp cta aligned")
def barrier(b: Builder, ins: Instruction) -> None:
    """Lower ``bar.sync``, ``barrier.sync`` and ``bar.warp.sync``."""
    if "warp" in ins.opcode:
        _pause(b, AT_WARP)
        return
    number = ins.operands[0]
    if "sync" not in ins.opcode or number != Immediate(0) or len(ins.operands) > 1:
        raise UnsupportedPtx(f"{ins.text} of a named or partial barrier", ins.line)
    _pause(b, AT_BARRIER)


@lowers("shfl", operands=4, words="sync up down bfly idx")
def shuffle(b: Builder, ins: Instruction) -> None:
    """Lower ``shfl``: read a register of another lane."""
    mode = word(ins, "up", "down", "bfly", "idx")
    offset, control = (b.value(ins.operands[i], U32) for i in (2, 3))
    _exchange(b, b.resize(b.value(ins.operands[1], B32), 32, 64))
    lane = b.op("and", "i32", "%lin", 31)
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
    value = b.let(f"call i64 @get_value(ptr %w, i32 %lin, i32 {source})")
    target = ins.operands[0]
    if isinstance(target, Pair):
        b.assign(target.second, PRED, inside)
        target = target.first
    b.assign(target, B32, b.cast("trunc", "i64", value, "i32"))


@lowers("vote", operands=2, words="sync all any uni ballot")
def vote(b: Builder, ins: Instruction) -> None:
    """Lower ``vote``."""
    mode = word(ins, "ballot", "all", "any", "uni")
    mask = "-1"
    if "sync" in ins.opcode:
        if len(ins.operands) < 3:
            raise InvalidPtx(f"{ins.text} needs a mask", ins.line)
        mask = b.value(ins.operands[2], B32)
    _exchange(b, b.cast("zext", "i1", b.value(ins.operands[1], PRED), "i64"))
    ballot = b.op("and", "i32", b.let("call i32 @get_ballot(ptr %w, i32 %lin)"), mask)
    if mode == "ballot":
        b.assign(ins.operands[0], B32, ballot)
        return
    present = b.op("and", "i32", b.let("call i32 @get_arrived(ptr %w, i32 %lin)"), mask)
    every = b.op("icmp eq", "i32", ballot, present)
    some = b.op("icmp ne", "i32", ballot, 0)
    same = b.op("or", "i1", every, b.op("xor", "i1", some, "true"))
    b.assign(ins.operands[0], PRED, {"all": every, "any": some, "uni": same}[mode])


@lowers("activemask", operands=1)
def active_mask(b: Builder, ins: Instruction) -> None:
    """Lower ``activemask``: the lanes that meet here."""
    _exchange(b, "0")
    b.assign(ins.operands[0], B32, b.let("call i32 @get_arrived(ptr %w, i32 %lin)"))


@lowers("redux", operands=3, words="sync add min max and or xor")
def reduce(b: Builder, ins: Instruction) -> None:
    """Lower ``redux``: combine a value of every lane in the mask."""
    kind, name = scalar(ins), word(ins, "add", "min", "max", "and", "or", "xor")
    mask = b.value(ins.operands[2], B32)
    _exchange(b, b.resize(b.value(ins.operands[1], kind), 32, 64))
    present = b.op("and", "i32", b.let("call i32 @get_arrived(ptr %w, i32 %lin)"), mask)
    neutral = _neutral(name, kind.signed)
    total = str(neutral)
    for lane in range(32):
        value = b.let(f"call i64 @get_value(ptr %w, i32 %lin, i32 {lane})")
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
