"""Barriers of the block, of warps, and with a reduction."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B32, PRED, U32, Builder
from outlast.server.drivers.emulated.lower.pause import exchange, pause
from outlast.server.drivers.emulated.lower.registry import lowers, word
from outlast.server.drivers.emulated.ptx.nodes import Immediate, Instruction, Operand
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx
from outlast.server.drivers.emulated.runtime import AT_BARRIER, BARRIERS, ID_SHIFT

_REDUCTIONS = ("popc", "and", "or")
_WORDS = "sync arrive red popc and or cta"


@lowers("bar", operands=(1, 4), words=f"{_WORDS} warp", types="pred u32")
@lowers("barrier", operands=(1, 4), words=f"{_WORDS} aligned", types="pred u32")
def barrier(b: Builder, ins: Instruction) -> None:
    """Lower ``bar`` and ``barrier``."""
    if "warp" in ins.opcode:
        exchange(b, "0", b.value(ins.operands[0], B32))
        return
    kind = word(ins, "sync", "arrive", "red")
    operands = list(ins.operands)
    if kind == "red":
        _reduce(b, ins, operands)
        return
    if len(operands) > 2 or (kind == "arrive" and len(operands) != 2):
        raise InvalidPtx(f"wrong number of operands of {ins.text}", ins.line)
    number = _announce(b, operands)
    if kind == "arrive":
        b.emit(f"call void @arrive(ptr %w, i32 %lin, i32 {number})")
    else:
        pause(b, _state(b, number))


def _announce(b: Builder, operands: list[Operand]) -> str:
    """Say how many threads a barrier needs (0: all there are); return its number."""
    first = operands[0]
    if isinstance(first, Immediate) and not 0 <= first.value < BARRIERS:
        raise InvalidPtx(f"there is no barrier {first.value}", b.line)
    number = b.op("and", "i32", b.value(first, U32), BARRIERS - 1)
    count = b.value(operands[1], U32) if len(operands) > 1 else "0"
    b.emit(f"call void @need(ptr %w, i32 {number}, i32 {count})")
    return number


def _state(b: Builder, number: str) -> str:
    return b.op("or", "i32", b.op("shl", "i32", number, ID_SHIFT), AT_BARRIER)


def _reduce(b: Builder, ins: Instruction, operands: list[Operand]) -> None:
    """Lower ``bar.red``: wait, and count the threads whose predicate holds."""
    if len(operands) < 3:
        raise InvalidPtx(f"wrong number of operands of {ins.text}", ins.line)
    operation = word(ins, *_REDUCTIONS)
    number = _announce(b, operands[1:-1])
    holds = b.cast("zext", "i1", b.value(operands[-1], PRED), "i64")
    b.emit(f"call void @put_value(ptr %w, i32 %lin, i64 {holds})")
    pause(b, _state(b, number))
    true = b.let(f"call i32 @barrier_word(ptr %w, i32 2, i32 {number})")
    if operation == "popc":
        b.assign(operands[0], U32, true)
        return
    total = b.let(f"call i32 @barrier_word(ptr %w, i32 3, i32 {number})")
    every, some = b.op("icmp eq", "i32", true, total), b.op("icmp ne", "i32", true, 0)
    b.assign(operands[0], PRED, every if operation == "and" else some)
