"""Branches and the ends of a thread."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import PRED, U32, Builder
from outlast.server.drivers.emulated.lower.registry import find, lowers
from outlast.server.drivers.emulated.ptx.nodes import (
    Function,
    Instruction,
    Label,
    Symbol,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx

LAUNCH_FAILED = 719
LIKELY = ", !prof !0"


def lower_body(b: Builder, function: Function) -> None:
    """Lower the statements of a function into the current frame."""
    frame = b.frame
    frame.labels = {step.name for step in function.body or () if isinstance(step, Label)}
    for step in function.body or ():
        if isinstance(step, Label):
            b.place(frame.label(step.name))
            frame.passed.add(step.name)
        else:
            b.line = step.line
            if b.ended:
                b.place(b.new_label())
            _lower_guarded(b, step)
    if not b.ended:
        b.jump(frame.return_label)


def _lower_guarded(b: Builder, ins: Instruction) -> None:
    handler = find(ins)
    if ins.guard is None:
        handler(b, ins)
        return
    inside, after = b.new_label(), b.new_label()
    condition = b.value(ins.guard, PRED)
    b.branch(condition, after if ins.negated else inside, inside if ins.negated else after)
    b.place(inside)
    handler(b, ins)
    b.place(after)


def _target(b: Builder, name: str) -> str:
    if name not in b.frame.labels:
        raise InvalidPtx(f"unknown label {name}", b.line)
    return b.frame.label(name)


def _poll(b: Builder) -> None:
    """Leave the thread if the launch has failed or was cancelled; sits on loop back edges."""
    error = b.let("load volatile i64, ptr %errors")
    onward = b.new_label()
    b.branch(b.op("icmp eq", "i64", error, 0), onward, "exit", LIKELY)
    b.place(onward)


def fail(b: Builder, ins: Instruction, code: int) -> None:
    """End the thread and the launch with an error."""
    b.emit(f"call void @record_fault(ptr %w, i64 {code}, i64 0, i32 {ins.line})")
    b.jump("exit")


@lowers("bra", operands=1, words="uni")
def branch(b: Builder, ins: Instruction) -> None:
    """Lower ``bra``."""
    target = ins.operands[0]
    if not isinstance(target, Symbol):
        raise InvalidPtx("a branch needs a label", ins.line)
    if target.name in b.frame.passed:
        _poll(b)
    b.jump(_target(b, target.name))


@lowers("brx", operands=2, words="idx")
def branch_indexed(b: Builder, ins: Instruction) -> None:
    """Lower ``brx.idx``: a jump table."""
    table = ins.operands[1]
    names = b.frame.function.branch_targets.get(table.name if isinstance(table, Symbol) else "")
    if not names:
        raise InvalidPtx("brx.idx needs a list of targets", ins.line)
    if any(name in b.frame.passed for name in names):
        _poll(b)
    index = b.value(ins.operands[0], U32)
    labels = [_target(b, name) for name in names]
    cases = " ".join(f"i32 {i}, label %{label}" for i, label in enumerate(labels))
    b.emit(f"switch i32 {index}, label %{labels[0]} [ {cases} ]")
    b.ended = True


@lowers("ret", operands=0, words="uni")
def leave_function(b: Builder, ins: Instruction) -> None:
    """Lower ``ret``."""
    b.jump(b.frame.return_label)


@lowers("exit", operands=0)
def leave_thread(b: Builder, ins: Instruction) -> None:
    """Lower ``exit``."""
    b.jump("exit")


@lowers("trap", operands=0)
def trap(b: Builder, ins: Instruction) -> None:
    """Lower ``trap``: the launch fails."""
    fail(b, ins, LAUNCH_FAILED)
