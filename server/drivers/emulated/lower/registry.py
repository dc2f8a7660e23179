"""Which function lowers which opcode, and what the opcode may be written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from outlast.server.drivers.emulated.ptx.nodes import SCALARS, Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

if TYPE_CHECKING:
    from outlast.server.drivers.emulated.lower.builder import Builder

Handler = Callable[["Builder", Instruction], None]


class Lowering(NamedTuple):
    """How one opcode is lowered."""

    handler: Handler
    #: Fewest and most operands it has.
    fewest: int
    most: int
    #: Words that may stand between opcode and types; others are refused, never ignored.
    words: frozenset[str]
    #: Types that it may be written with.
    types: frozenset[str]


LOWERINGS: dict[str, Lowering] = {}

# Types that instructions share.
BITS = "b16 b32 b64"
UNSIGNED, SIGNED = "u16 u32 u64", "s16 s32 s64"
INTEGERS = f"{UNSIGNED} {SIGNED}"
SINGLE_OR_DOUBLE = "f32 f64"
SMALL_FLOATS = "f16 f16x2 bf16 bf16x2"
FLOATS = f"{SINGLE_OR_DOUBLE} {SMALL_FLOATS}"


def lowers(
    *opcodes: str, operands: int | tuple[int, int], words: str = "", types: str = ""
) -> Callable[[Handler], Handler]:
    """Register a handler for ``opcodes``; a pair says the fewest and the most operands."""
    known = frozenset(types.split())
    assert known <= set(SCALARS), known
    fewest, most = operands if isinstance(operands, tuple) else (operands, operands)

    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            LOWERINGS[opcode] = Lowering(handler, fewest, most, frozenset(words.split()), known)
        return handler

    return register


def find(ins: Instruction) -> Handler:
    """Return the handler of an instruction.

    Raises
    ------
    UnsupportedPtx
        The opcode, or a word in it, is not known to this device.
    InvalidPtx
        The instruction has too few or too many operands, or no such type.
    """
    lowering = LOWERINGS.get(ins.opcode[0])
    if lowering is None:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    for word in ins.opcode[1:]:
        if word in lowering.words or word in lowering.types:
            continue
        if word in SCALARS:
            raise InvalidPtx(f"{ins.text} is no instruction (.{word})", ins.line)
        raise UnsupportedPtx(f"instruction {ins.text} (.{word})", ins.line)
    fewest, most = lowering.fewest, lowering.most
    if not fewest <= len(ins.operands) <= most:
        wanted = fewest if fewest == most else f"{fewest} to {most}"
        raise InvalidPtx(f"{ins.text} needs {wanted} operands", ins.line)
    return lowering.handler


def any_scalar(ins: Instruction, position: int = -1) -> Scalar:
    """Return the type at ``position`` of the opcode."""
    found = SCALARS.get(ins.opcode[position]) if len(ins.opcode) > abs(position) - 1 else None
    if found is None:
        raise InvalidPtx(f"{ins.text} has no type", ins.line)
    return found


def scalar(ins: Instruction, position: int = -1) -> Scalar:
    """Return the type at ``position`` of the opcode; packed types are refused."""
    found = any_scalar(ins, position)
    if found.kind == "v":
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    return found


def word(ins: Instruction, *choices: str) -> str:
    """Return which of ``choices`` the opcode has."""
    for choice in choices:
        if choice in ins.opcode:
            return choice
    raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
