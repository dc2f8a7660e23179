"""``cp.async``: copies to shared memory, done at once, so that waiting for them needs nothing."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import PRED, U32, Builder
from outlast.server.drivers.emulated.lower.memory import POLICY, SECTORS, pointer
from outlast.server.drivers.emulated.lower.registry import lowers
from outlast.server.drivers.emulated.ptx.nodes import Immediate, Instruction, Not, Operand, Register
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_SIZES = (4, 8, 16)
_GROUPS = ("commit_group", "wait_group", "wait_all")


@lowers(
    "cp",
    operands=(0, 5),
    words=f"async ca cg shared shared::cta global {' '.join(_GROUPS)} {POLICY} {SECTORS}",
)
def copy(b: Builder, ins: Instruction) -> None:
    """Lower ``cp.async`` and the words that group and await copies."""
    if ins.opcode[1:2] != ("async",):
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    group = next((name for name in _GROUPS if name in ins.opcode), "")
    if not group:
        _copy(b, ins)
    elif len(ins.operands) != (group == "wait_group"):
        raise InvalidPtx(f"wrong number of operands of {ins.text}", ins.line)
    elif group == "wait_group" and not isinstance(ins.operands[0], Immediate):
        raise InvalidPtx(f"{ins.text} needs a number", ins.line)


def _copy(b: Builder, ins: Instruction) -> None:
    operands = list(ins.operands)
    if POLICY in ins.opcode:
        operands.pop()
    if not 3 <= len(operands) <= 4:
        raise InvalidPtx(f"wrong number of operands of {ins.text}", ins.line)
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in _SIZES:
        raise InvalidPtx(f"{ins.text} needs a size of {_SIZES}", ins.line)
    target = pointer(b, ins, operands[0], size.value, "shared")
    if len(operands) == 3:
        source = pointer(b, ins, operands[1], size.value, "global")
        _move(b, target, source, size.value, str(size.value))
        return
    count = _count(b, operands[3], size.value)
    some, after = b.new_label(), b.new_label()
    _clear(b, target, size.value)
    # Nothing is read, nor its address looked at, when all of it is zeros.
    b.branch(b.op("icmp ne", "i64", count, 0), some, after)
    b.place(some)
    _move(b, target, pointer(b, ins, operands[1], size.value, "global"), size.value, count)
    b.place(after)


def _count(b: Builder, operand: Operand, size: int) -> str:
    """Return how many bytes are copied: a number, or all unless a predicate says none."""
    is_predicate = isinstance(operand, Not) or (
        isinstance(operand, Register) and b.register_type(operand.name).kind == "p"
    )
    if is_predicate:
        return b.select(b.value(operand, PRED), "i64", "0", str(size))
    wide = b.resize(b.value(operand, U32), 32, 64)
    return b.intrinsic("i64", "llvm.umin.i64", f"i64 {wide}", f"i64 {size}")


def _clear(b: Builder, target: str, size: int) -> None:
    b.emit(f"store i{8 * size} 0, ptr {target}, align {size}")


def _move(b: Builder, target: str, source: str, size: int, count: str) -> None:
    if count == str(size):
        value = b.let(f"load i{8 * size}, ptr {source}, align {size}")
        b.emit(f"store i{8 * size} {value}, ptr {target}, align {size}")
        return
    b.declarations.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    b.emit(f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {count}, i1 false)")
