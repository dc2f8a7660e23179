"""Loads, stores, atomics and address conversions.

Every access is checked, always: the page map for generic, global and constant addresses, the
window's size for shared and local ones, and the natural alignment for all of them.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B64, PRED, Builder
from outlast.server.drivers.emulated.lower.registry import lowers, scalar, word
from outlast.server.drivers.emulated.ptx.nodes import (
    Address,
    Instruction,
    Operand,
    Scalar,
    Symbol,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

PAGE_SHIFT = 12  # 4 KiB pages

_SPACES = "param param::entry param::func global shared shared::cta local const"
_ORDERS = "volatile relaxed acquire release acq_rel weak cta gpu sys"
_CACHES = "ca cg cs lu cv wb wt nc"


def memory_space(ins: Instruction) -> str:
    """Return the state space an opcode names; ``generic`` if none."""
    for part in ins.opcode[1:]:
        head = part.split("::", 1)[0]
        if head in ("param", "global", "shared", "local", "const"):
            return head
    return "generic"


def pointer(b: Builder, ins: Instruction, operand: Operand, size: int) -> str:
    """Return a checked pointer to ``size`` bytes."""
    if not isinstance(operand, Address):
        raise InvalidPtx(f"{ins.text} needs an address", ins.line)
    space = memory_space(ins)
    if space == "param":
        return _parameter(b, operand)
    address = str(operand.offset)
    if operand.base is not None:
        address = b.value(operand.base, B64)
        if operand.offset:
            address = b.op("add", "i64", address, operand.offset)
    aligned = b.op("icmp eq", "i64", b.op("and", "i64", address, size - 1), 0)
    if space in ("shared", "local"):
        limit = "%shared_size" if space == "shared" else str(b.layout.local_size)
        base = "%shared_base" if space == "shared" else "%lbase"
        end = b.intrinsic("i64", "llvm.uadd.sat.i64", f"i64 {address}", f"i64 {size}")
        _guard(b, ins, b.op("icmp ule", "i64", end, limit), aligned, address)
        address = b.op("add", "i64", address, base)
    else:
        _guard(b, ins, _mapped(b, address), aligned, address)
    return b.cast("inttoptr", "i64", address, "ptr")


def _parameter(b: Builder, operand: Address) -> str:
    if isinstance(operand.base, Symbol):
        return b.parameter_pointer(Symbol(operand.base.name, operand.offset))
    raise UnsupportedPtx("a parameter through a register", b.line)


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
    return operand.items if isinstance(operand, Vector) else (operand,)


def _volatile(ins: Instruction) -> str:
    orders = ("volatile", "relaxed", "acquire", "release")
    return "volatile " if any(order in ins.opcode for order in orders) else ""


def _element(b: Builder, base: str, offset: int) -> str:
    return b.let(f"getelementptr i8, ptr {base}, i64 {offset}") if offset else base


@lowers("ld", "ldu", operands=2, words=f"{_SPACES} {_ORDERS} {_CACHES} v2 v4")
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


@lowers("st", operands=2, words=f"{_SPACES} {_ORDERS} {_CACHES} v2 v4")
def store(b: Builder, ins: Instruction) -> None:
    """Lower ``st``, also of vectors."""
    kind = scalar(ins).raw
    values = [b.value(item, kind) for item in _items(ins.operands[1])]
    base = pointer(b, ins, ins.operands[0], kind.size * len(values))
    align = 1 if memory_space(ins) == "param" else kind.size
    for i, value in enumerate(values):
        target = _element(b, base, i * kind.size)
        b.emit(f"store {_volatile(ins)}{kind.integer} {value}, ptr {target}, align {align}")


_ATOMICS = {
    "add": ("add", "fadd"),
    "exch": ("xchg", "xchg"),
    "inc": ("uinc_wrap", ""),
    "dec": ("udec_wrap", ""),
    "and": ("and", ""),
    "or": ("or", ""),
    "xor": ("xor", ""),
    "min": ("umin", "fmin"),
    "max": ("umax", "fmax"),
}
_ATOMIC_WORDS = f"{_SPACES} {_ORDERS} cas noftz {' '.join(_ATOMICS)}"


@lowers("atom", operands=3, words=_ATOMIC_WORDS)
def atomic(b: Builder, ins: Instruction) -> None:
    """Lower ``atom``."""
    kind, old = _atomic(b, ins, ins.operands[1], ins.operands[2:])
    b.assign(ins.operands[0], kind, old)


@lowers("red", operands=2, words=_ATOMIC_WORDS)
def reduce(b: Builder, ins: Instruction) -> None:
    """Lower ``red``: an atomic without a result."""
    _atomic(b, ins, ins.operands[0], ins.operands[1:])


def _atomic(
    b: Builder, ins: Instruction, place: Operand, values: tuple[Operand, ...]
) -> tuple[Scalar, str]:
    """Emit the operation; return its type and the old value."""
    kind = scalar(ins)
    name = word(ins, "cas", *_ATOMICS)
    if name == "cas":
        return _compare_and_swap(b, ins, place, values)
    if kind.name == "bf16" or kind.bits < 16:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    operation = _ATOMICS[name][kind.is_float]
    if not operation:
        raise InvalidPtx(f"{ins.text} of a float", ins.line)
    if kind.signed and name in ("min", "max"):
        operation = name
    base = pointer(b, ins, place, kind.size)
    value = b.value(values[0], kind)
    return kind, b.let(f"atomicrmw {operation} ptr {base}, {kind.llvm} {value} seq_cst")


def _compare_and_swap(
    b: Builder, ins: Instruction, place: Operand, values: tuple[Operand, ...]
) -> tuple[Scalar, str]:
    kind = scalar(ins).raw
    if len(values) < 2:
        raise InvalidPtx(f"{ins.text} needs 4 operands", ins.line)
    base = pointer(b, ins, place, kind.size)
    expected, new = (b.value(value, kind) for value in values[:2])
    t = kind.integer
    pair = b.let(f"cmpxchg ptr {base}, {t} {expected}, {t} {new} seq_cst seq_cst")
    return kind, b.let(f"extractvalue {{ {t}, i1 }} {pair}, 0")


@lowers("cvta", operands=2, words=f"{_SPACES} to")
def convert_address(b: Builder, ins: Instruction) -> None:
    """Lower ``cvta``: add or take away a window's base."""
    space, kind = memory_space(ins), scalar(ins)
    value = b.value(ins.operands[1], kind)
    if space in ("shared", "local"):
        window = "%shared_base" if space == "shared" else "%lbase"
        base = b.resize(window, 64, kind.bits)
        value = b.op("sub" if "to" in ins.opcode else "add", kind.integer, value, base)
    b.assign(ins.operands[0], kind, value)


@lowers("isspacep", operands=2, words=_SPACES)
def is_in_space(b: Builder, ins: Instruction) -> None:
    """Lower ``isspacep``."""
    space, address = memory_space(ins), b.value(ins.operands[1], B64)
    if space not in ("shared", "local", "global"):
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    shared = _in_window(b, address, "%shared_base", "%shared_size")
    local = _in_window(b, address, "%lbase", str(b.layout.local_size))
    other = b.op("xor", "i1", b.op("or", "i1", shared, local), "true")
    inside = {"shared": shared, "local": local, "global": other}[space]
    b.assign(ins.operands[0], PRED, inside)


def _in_window(b: Builder, address: str, base: str, size: str) -> str:
    return b.op("icmp ult", "i64", b.op("sub", "i64", address, base), size)


@lowers("fence", "membar", operands=0, words="gl cta sys gpu acq_rel sc acquire release")
def fence(b: Builder, ins: Instruction) -> None:
    """Lower fences: threads run one after another, so memory is always consistent."""


@lowers("prefetch", "prefetchu", operands=1, words="global local L1 L2")
def prefetch(b: Builder, ins: Instruction) -> None:
    """Lower prefetches to nothing."""
