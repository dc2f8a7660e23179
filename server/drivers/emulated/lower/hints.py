"""What needs nothing here: fences, hints about caches, waits that are never long."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B64, U32, Builder
from outlast.server.drivers.emulated.lower.memory import EVICTIONS, memory_space, pointer
from outlast.server.drivers.emulated.lower.registry import lowers
from outlast.server.drivers.emulated.ptx.nodes import Immediate, Instruction
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx


@lowers("brkpt", operands=0)
@lowers("griddepcontrol", operands=0, words="launch_dependents wait")
def no_operation(b: Builder, ins: Instruction) -> None:
    """Lower what has an effect beside another program only: a debugger or a dependent grid."""


@lowers("nanosleep", operands=1, types="u32")
def sleep(b: Builder, ins: Instruction) -> None:
    """Lower ``nanosleep``, which may be shorter than asked for."""
    b.value(ins.operands[0], U32)


@lowers("pmevent", operands=1, words="mask")
def performance_event(b: Builder, ins: Instruction) -> None:
    """Lower ``pmevent``: nobody counts."""
    if not isinstance(ins.operands[0], Immediate):
        raise InvalidPtx(f"{ins.text} needs a number", ins.line)


@lowers("membar", operands=0, words="gl cta sys")
@lowers("fence", operands=0, words="cta gpu sys acq_rel sc proxy alias")
def fence(b: Builder, ins: Instruction) -> None:
    """Lower fences: threads run one after another, so memory is always consistent."""


@lowers("prefetch", operands=1, words="global local L1 L2 L2::evict_last L2::evict_normal")
@lowers("prefetchu", operands=1, words="L1")
def prefetch(b: Builder, ins: Instruction) -> None:
    """Lower prefetches to nothing, of whatever address."""
    b.value(ins.operands[0], B64)


@lowers("applypriority", operands=2, words="global L2::evict_normal")
@lowers("discard", operands=2, words="global L2")
def cache_line(b: Builder, ins: Instruction) -> None:
    """Lower what is said of a cache line of 128 bytes: it only has to be there."""
    if ins.operands[1] != Immediate(128):
        raise InvalidPtx(f"{ins.text} needs 128 bytes", ins.line)
    pointer(b, ins, ins.operands[0], 128, memory_space(ins))


@lowers(
    "createpolicy",
    operands=(1, 4),
    words=f"fractional range cvt global L2 {EVICTIONS}",
    types="b64",
)
def create_policy(b: Builder, ins: Instruction) -> None:
    """Lower ``createpolicy``: what it makes is read by hints alone."""
    b.assign(ins.operands[0], B64, "0")
