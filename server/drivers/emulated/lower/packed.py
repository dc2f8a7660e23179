"""Packed types: what is done with both halves of a word alike."""

from __future__ import annotations

from collections.abc import Callable

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.ptx.nodes import Instruction, Scalar

#: Computes a value of a scalar type from others.
Function = Callable[..., str]


def unpack(b: Builder, bits: str, kind: Scalar) -> tuple[str, str]:
    """Return the lower and the upper half of a packed word."""
    low = b.cast("trunc", "i32", bits, "i16")
    high = b.cast("trunc", "i32", b.op("lshr", "i32", bits, 16), "i16")
    return b.from_bits(low, kind.element), b.from_bits(high, kind.element)


def pack(b: Builder, low: str, high: str, kind: Scalar) -> str:
    """Return a packed word of two values."""
    first, second = (
        b.cast("zext", "i16", b.to_bits(value, kind.element), "i32") for value in (low, high)
    )
    return b.op("or", "i32", first, b.op("shl", "i32", second, 16))


def map_values(b: Builder, kind: Scalar, function: Function, *values: str) -> str:
    """Apply a function to values, or to both halves of packed ones.

    ``function`` gets the scalar type and the values, and returns one value of that type.
    """
    if kind.kind != "v":
        return function(kind, *values)
    halves = [unpack(b, value, kind) for value in values]
    low, high = (function(kind.element, *(half[i] for half in halves)) for i in (0, 1))
    return pack(b, low, high, kind)


def assign_mapped(b: Builder, ins: Instruction, kind: Scalar, function: Function) -> None:
    """Apply a function to the sources of an instruction."""
    values = [b.value(operand, kind) for operand in ins.operands[1:]]
    b.assign(ins.operands[0], kind, map_values(b, kind, function, *values))
