"""Atomic operations: ``atom`` and ``red``."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.memory import ATOMIC_SPACES, POLICY, SCOPES, pointer
from outlast.server.drivers.emulated.lower.packed import map_values
from outlast.server.drivers.emulated.lower.registry import BITS, FLOATS, any_scalar, lowers, word
from outlast.server.drivers.emulated.ptx.nodes import Instruction, Operand, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

#: PTX operation -> LLVM's for integers and for floats; empty: there is none.
_OPERATIONS = {
    "add": ("add", "fadd"),
    "exch": ("xchg", ""),
    "inc": ("uinc_wrap", ""),
    "dec": ("udec_wrap", ""),
    "and": ("and", ""),
    "or": ("or", ""),
    "xor": ("xor", ""),
    "min": ("umin", ""),
    "max": ("umax", ""),
}
_WORDS = f"{ATOMIC_SPACES} relaxed release {SCOPES} {POLICY} noftz {' '.join(_OPERATIONS)}"


@lowers(
    "atom",
    operands=(3, 5),
    words=f"{_WORDS} acquire acq_rel cas",
    types=f"{BITS} u32 u64 s32 s64 {FLOATS}",
)
def atomic(b: Builder, ins: Instruction) -> None:
    """Lower ``atom``."""
    kind, old = _atomic(b, ins, ins.operands[1], ins.operands[2:])
    b.assign(ins.operands[0], kind, old)


@lowers(
    "red",
    operands=(2, 3),
    words=_WORDS.replace(" exch", ""),
    types=f"b32 b64 u32 u64 s32 s64 {FLOATS}",
)
def reduce(b: Builder, ins: Instruction) -> None:
    """Lower ``red``: an atomic without a result."""
    _atomic(b, ins, ins.operands[0], ins.operands[1:])


def _atomic(
    b: Builder, ins: Instruction, place: Operand, values: tuple[Operand, ...]
) -> tuple[Scalar, str]:
    """Emit the operation; return its type and the old value. A cache policy may stand last."""
    kind = any_scalar(ins)
    name = word(ins, "cas", *_OPERATIONS)
    if kind.bits < 16 or kind.kind == "p":
        raise InvalidPtx(f"instruction {ins.text}", ins.line)
    if name == "cas":
        return _compare_and_swap(b, ins, kind.raw, place, values)
    operation = _OPERATIONS[name][kind.element.is_float]
    if not operation:
        raise InvalidPtx(f"{ins.text} of a float", ins.line)
    if kind.bits == 16 and not kind.is_float:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    if kind.signed and name in ("min", "max"):
        operation = name
    base = pointer(b, ins, place, kind.size)
    value = b.value(values[0], kind)
    if kind.kind == "v" or kind.name == "bf16":
        return kind, _small_add(b, kind, base, value)
    return kind, b.let(f"atomicrmw {operation} ptr {base}, {kind.llvm} {value} seq_cst")


def _small_add(b: Builder, kind: Scalar, base: str, value: str) -> str:
    """Add what LLVM has no atomic for: threads run one after another, so nobody interferes."""
    old = b.let(f"load volatile {kind.integer}, ptr {base}")
    first = b.from_bits(old, kind)
    total = map_values(b, kind, lambda part, x, y: b.op("fadd", part.llvm, x, y), first, value)
    b.emit(f"store volatile {kind.integer} {b.to_bits(total, kind)}, ptr {base}")
    return first


def _compare_and_swap(
    b: Builder, ins: Instruction, kind: Scalar, place: Operand, values: tuple[Operand, ...]
) -> tuple[Scalar, str]:
    if len(values) < 2:
        raise InvalidPtx(f"{ins.text} needs 4 operands", ins.line)
    base = pointer(b, ins, place, kind.size)
    expected, new = (b.value(value, kind) for value in values[:2])
    t = kind.integer
    pair = b.let(f"cmpxchg ptr {base}, {t} {expected}, {t} {new} seq_cst seq_cst")
    return kind, b.let(f"extractvalue {{ {t}, i1 }} {pair}, 0")
