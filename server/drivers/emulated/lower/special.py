"""Special registers: ``%tid.x`` and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.server.drivers.emulated import runtime
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

if TYPE_CHECKING:
    from outlast.server.drivers.emulated.lower.builder import Builder

_GEOMETRY = {
    f"%{name}.{axis}": f"%{short}{axis}"
    for name, short in (("tid", "t"), ("ntid", "n"), ("ctaid", "b"), ("nctaid", "g"))
    for axis in "xyz"
}
_CONSTANTS = {
    "%smid": 0,
    "%nsmid": 1,
    "%nwarpid": 64,
    # No counters, nothing of shared memory kept back.
    **{f"%pm{i}": 0 for i in range(8)},
    **{f"%reserved_smem_offset_{name}": 0 for name in ("begin", "end", "cap", "0", "1")},
}
_LONG_CONSTANTS = {"%gridid": 0, "%current_graph_exec": 0, **{f"%pm{i}_64": 0 for i in range(8)}}


def read_special(b: Builder, name: str) -> tuple[str, int]:
    """Return the value of a special register and its width in bits.

    Raises
    ------
    InvalidPtx
        There is no such register.
    UnsupportedPtx
        The emulated device has none.
    """
    if name in _GEOMETRY:
        return _GEOMETRY[name], 32
    if name in _CONSTANTS:
        return str(_CONSTANTS[name]), 32
    if name in _LONG_CONSTANTS:
        return str(_LONG_CONSTANTS[name]), 64
    if name == "%laneid":
        return b.op("and", "i32", "%lin", 31), 32
    if name == "%warpid":
        return b.op("lshr", "i32", "%lin", 5), 32
    if name == "%dynamic_smem_size":
        return b.cast("trunc", "i64", b.word("dynamic"), "i32"), 32
    if name == "%total_smem_size":
        return b.cast("trunc", "i64", "%shared_size", "i32"), 32
    if name.startswith("%lanemask_"):
        return _lane_mask(b, name[10:]), 32
    if name in ("%clock", "%clock_hi"):
        cycles = b.intrinsic("i64", "llvm.readcyclecounter")
        if name == "%clock_hi":
            cycles = b.op("lshr", "i64", cycles, 32)
        return b.cast("trunc", "i64", cycles, "i32"), 32
    if name == "%clock64":
        return b.intrinsic("i64", "llvm.readcyclecounter"), 64
    if name.startswith("%globaltimer"):
        return _global_timer(b, name)
    if name.startswith(("%envreg", "%cluster", "%ncluster", "%is_explicit", "%aggr_smem")):
        raise UnsupportedPtx(f"special register {name}", b.line)
    raise InvalidPtx(f"unknown register {name}", b.line)


def _global_timer(b: Builder, name: str) -> tuple[str, int]:
    b.declarations.add(runtime.TIMER)
    time = b.let("call i64 @nanoseconds()")
    if name == "%globaltimer":
        return time, 64
    if name == "%globaltimer_hi":
        time = b.op("lshr", "i64", time, 32)
    elif name != "%globaltimer_lo":
        raise InvalidPtx(f"unknown register {name}", b.line)
    return b.cast("trunc", "i64", time, "i32"), 32


def _lane_mask(b: Builder, which: str) -> str:
    lane = b.op("and", "i32", "%lin", 31)
    own = b.op("shl", "i32", "1", lane)
    below = b.op("sub", "i32", own, 1)
    if which == "eq":
        return own
    if which == "lt":
        return below
    if which == "ge":
        return b.op("xor", "i32", below, -1)
    up_to = b.op("or", "i32", own, below)
    if which == "le":
        return up_to
    if which == "gt":
        return b.op("xor", "i32", up_to, -1)
    raise InvalidPtx(f"unknown register %lanemask_{which}", b.line)
