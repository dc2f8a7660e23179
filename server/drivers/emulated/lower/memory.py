"""Loads, stores and address conversions.

Every access is checked, always: the page map for generic, global and constant addresses, the
window's size for shared and local ones, and the natural alignment for all of them.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B64, PRED, Builder
from outlast.server.drivers.emulated.lower.registry import (
    BITS,
    INTEGERS,
    SINGLE_OR_DOUBLE,
    lowers,
    scalar,
)
from outlast.server.drivers.emulated.ptx.nodes import (
    Address,
    Instruction,
    Operand,
    Symbol,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx

PAGE_SHIFT = 12  # 4 KiB pages

_SHARED = "shared shared::cta"
#: Spaces of addresses; parameters and constants cannot be written from everywhere.
SPACES = f"param param::entry global local const {_SHARED}"
ATOMIC_SPACES = f"global {_SHARED}"
SCOPES = "cta gpu sys"
#: What is said of caches changes nothing.
EVICTIONS = "L2::evict_first L2::evict_last L2::evict_normal L2::evict_unchanged"
POLICY = "L2::cache_hint"
SECTORS = "L2::64B L2::128B L2::256B"
_FIRST_LEVEL = ("evict_first", "evict_last", "evict_normal", "evict_unchanged", "no_allocate")
_HINTS = " ".join((POLICY, *(f"L1::{word}" for word in _FIRST_LEVEL)))
_TYPES = f"b8 u8 s8 {BITS} {INTEGERS} {SINGLE_OR_DOUBLE}"
_LOADS = f"weak volatile relaxed acquire mmio {SCOPES} ca cg cs lu cv nc {_HINTS} {SECTORS}"
_STORES = f"weak volatile relaxed release mmio {SCOPES} wb cg cs wt {_HINTS}"


def memory_space(ins: Instruction) -> str:
    """Return the state space an opcode names; ``generic`` if none."""
    for part in ins.opcode[1:]:
        head = part.split("::", 1)[0]
        if head in ("param", "global", "shared", "local", "const"):
            return head
    return "generic"


def pointer(
    b: Builder, ins: Instruction, operand: Operand, size: int, space: str | None = None
) -> str:
    """Return a checked pointer to ``size`` bytes, in the space that the opcode names."""
    if not isinstance(operand, Address):
        raise InvalidPtx(f"{ins.text} needs an address", ins.line)
    space = space or memory_space(ins)
    if space == "param" and isinstance(operand.base, Symbol) and operand.index is None:
        return b.parameter_pointer(Symbol(operand.base.name, operand.offset), size)
    return checked(b, ins, b.value(operand, B64), size, space)


def checked(b: Builder, ins: Instruction, address: str, size: int, space: str) -> str:
    """Return a pointer to an address in a space after checking it."""
    aligned = b.op("icmp eq", "i64", b.op("and", "i64", address, size - 1), 0)
    if space in ("shared", "local"):
        limit = "%shared_size" if space == "shared" else str(b.layout.thread_local)
        base = "%shared_base" if space == "shared" else "%lbase"
        end = b.intrinsic("i64", "llvm.uadd.sat.i64", f"i64 {address}", f"i64 {size}")
        _guard(b, ins, b.op("icmp ule", "i64", end, limit), aligned, address)
        address = b.op("add", "i64", address, base)
    else:
        _guard(b, ins, _mapped(b, address), aligned, address)
    return b.cast("inttoptr", "i64", address, "ptr")


def _mapped(b: Builder, address: str) -> str:
    offset = b.op("sub", "i64", address, "%arena_base")
    page = b.op("lshr", "i64", offset, PAGE_SHIFT)
    inside = b.op("icmp ult", "i64", page, "%pages")
    index = b.select(inside, "i64", page, "0")  # page 0 is never mapped
    entry = b.let(f"load i8, ptr {b.let(f'getelementptr i8, ptr %pagemap, i64 {index}')}")
    return b.op("icmp ne", "i8", entry, 0)


def _guard(b: Builder, ins: Instruction, mapped: str, aligned: str, address: str) -> None:
    good, bad = b.new_label(), b.new_label()
    b.branch(b.op("and", "i1", mapped, aligned), good, bad, ", !prof !0")
    b.place(bad)
    code = b.select(mapped, "i64", "716", "700")  # MISALIGNED_ADDRESS, ILLEGAL_ADDRESS
    b.emit(f"call void @record_fault(ptr %w, i64 {code}, i64 {address}, i32 {ins.line})")
    b.jump("exit")
    b.place(good)


def _items(operand: Operand) -> tuple[Operand, ...]:
    """Return the parts of a vector, or the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def _volatile(ins: Instruction) -> str:
    """Return LLVM's word for an access that must happen, if the opcode has an order."""
    orders = ("volatile", "relaxed", "acquire", "release")
    return "volatile " if any(order in ins.opcode for order in orders) else ""


def _element(b: Builder, base: str, offset: int) -> str:
    return b.let(f"getelementptr i8, ptr {base}, i64 {offset}") if offset else base


@lowers("ldu", operands=2, words="global v2 v4", types=_TYPES)
@lowers("ld", operands=(2, 3), words=f"{SPACES} param::func {_LOADS} v2 v4", types=f"{_TYPES} b128")
def load(b: Builder, ins: Instruction) -> None:
    """Lower ``ld``, also of vectors."""
    kind = scalar(ins)
    targets = _items(ins.operands[0])
    base = pointer(b, ins, ins.operands[1], kind.size * len(targets))
    align = 1 if memory_space(ins) == "param" else kind.size
    memory = "i8" if kind.size == 1 else kind.integer
    values = [
        b.let(
            f"load {_volatile(ins)}{memory}, ptr {_element(b, base, i * kind.size)}, align {align}"
        )
        for i in range(len(targets))
    ]
    for target, value in zip(targets, values, strict=True):
        b.assign(target, kind.raw if kind.is_float else kind, value)


@lowers(
    "st",
    operands=(2, 3),
    words=f"param param::func global local {_SHARED} {_STORES} v2 v4",
    types=f"{_TYPES} b128",
)
def store(b: Builder, ins: Instruction) -> None:
    """Lower ``st``, also of vectors."""
    kind = scalar(ins).raw
    values = [b.value(item, kind) for item in _items(ins.operands[1])]
    base = pointer(b, ins, ins.operands[0], kind.size * len(values))
    align = 1 if memory_space(ins) == "param" else kind.size
    for i, value in enumerate(values):
        target = _element(b, base, i * kind.size)
        b.emit(f"store {_volatile(ins)}{kind.integer} {value}, ptr {target}, align {align}")


@lowers("cvta", operands=2, words=f"{SPACES} to", types="u32 u64")
def convert_address(b: Builder, ins: Instruction) -> None:
    """Lower ``cvta``: add or take away a window's base."""
    space, kind = memory_space(ins), scalar(ins)
    value = b.value(ins.operands[1], kind)
    if space in ("shared", "local"):
        window = "%shared_base" if space == "shared" else "%lbase"
        base = b.resize(window, 64, kind.bits)
        value = b.op("sub" if "to" in ins.opcode else "add", kind.integer, value, base)
    b.assign(ins.operands[0], kind, value)


@lowers("isspacep", operands=2, words=SPACES)
def is_in_space(b: Builder, ins: Instruction) -> None:
    """Lower ``isspacep``."""
    space, address = memory_space(ins), b.value(ins.operands[1], B64)
    if space == "shared":
        inside = _in_window(b, address, "%shared_base", "%shared_size")
    elif space == "local":
        inside = _in_window(b, address, "%lbase", str(b.layout.thread_local))
    elif space == "param":
        start = b.cast("ptrtoint", "ptr", "%params", "i64")
        inside = _in_window(b, address, start, str(b.layout.parameter_size))
    elif space == "const":
        inside = _in_constants(b, address)
    elif space == "global":
        # All that is no window; constants are memory like any other, and windows to PTX.
        windows = [
            _in_window(b, address, "%shared_base", "%shared_size"),
            _in_window(b, address, "%lbase", str(b.layout.thread_local)),
            _in_constants(b, address),
        ]
        other = b.op("or", "i1", b.op("or", "i1", windows[0], windows[1]), windows[2])
        inside = b.op("xor", "i1", other, "true")
    else:
        raise InvalidPtx(f"{ins.text} names no space", ins.line)
    b.assign(ins.operands[0], PRED, inside)


def _in_window(b: Builder, address: str, base: str, size: str) -> str:
    return b.op("icmp ult", "i64", b.op("sub", "i64", address, base), size)


def _in_constants(b: Builder, address: str) -> str:
    inside = "false"
    for variable in b.module.variables.values():
        if variable.space == "const":
            start = b.symbol_address(Symbol(variable.name))
            inside = b.op("or", "i1", inside, _in_window(b, address, start, str(variable.size)))
    return inside
