"""What instructions do to bits, for the cases of `exact_cases`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from helpers.exact import FORMATS, NAN, decode, encode, is_negative, not_a_number

#: Maps the bits of sources to those of the result.
Reference = Callable[..., int]
M32 = (1 << 32) - 1
#: Modes of ``prmt`` as PTX's table has them: the bytes from the highest to the lowest.
PICKS = {
    "f4e": "3210 4321 5432 6543",
    "b4e": "5670 6701 7012 0123",
    "rc8": "0000 1111 2222 3333",
    "ecl": "3210 3211 3222 3333",
    "ecr": "0000 1110 2210 3210",
    "rc16": "1010 3232 1010 3232",
}


def width(kind: str) -> int:
    """Return the bits of a type's values."""
    if kind.endswith("x2"):
        return 32
    return 1 + sum(FORMATS[kind]) if kind in FORMATS else int(kind[1:])


def flushed(bits: int, kind: str) -> int:
    value = decode(bits, kind)
    exponent_bits, fraction_bits = FORMATS[kind]
    smallest = Fraction(2) ** (2 - (1 << (exponent_bits - 1)))
    if isinstance(value, Fraction) and abs(value) < smallest:
        return bits & (1 << (exponent_bits + fraction_bits))
    return bits


def with_flush(kind: str, reference: Reference) -> Reference:
    return lambda *xs: flushed(reference(*(flushed(x, kind) for x in xs)), kind)


def relu(kind: str, reference: Reference) -> Reference:
    def function(*xs: int) -> int:
        result = reference(*xs)
        is_nan = decode(result, kind) == NAN
        return result if is_nan or not is_negative(result, kind) else 0

    return function


def saturated(kind: str, reference: Reference) -> Reference:
    def function(*xs: int) -> int:
        bits = reference(*xs)
        value = decode(bits, kind)
        if value == NAN or is_negative(bits, kind):
            return 0
        return min(bits, encode(Fraction(1), kind))

    return function


def extreme(kind: str, largest: bool, propagate: bool = False) -> Reference:
    """Return ``min`` or ``max``."""
    sign = 1 << sum(FORMATS[kind])

    def order(bits: int) -> int:
        return -(bits & (sign - 1)) - 1 if bits & sign else bits

    def function(x: int, y: int) -> int:
        nans = [decode(v, kind) == NAN for v in (x, y)]
        if all(nans) or (propagate and any(nans)):
            return not_a_number(kind)
        if any(nans):
            return y if nans[0] else x
        return max(x, y, key=order) if largest else min(x, y, key=order)

    return function


def xor_sign(kind: str, reference: Reference) -> Reference:
    sign = 1 << sum(FORMATS[kind])

    def function(x: int, y: int) -> int:
        result = reference(x & (sign - 1), y & (sign - 1))
        if decode(result, kind) == NAN:
            return not_a_number(kind)
        return result & (sign - 1) | (x ^ y) & sign

    return function


def compare(kind: str, condition: str) -> Callable[[int, int], bool]:
    def function(x: int, y: int) -> bool:
        first, second = decode(x, kind), decode(y, kind)
        if NAN in (first, second):
            return condition.endswith("u") or condition == "nan"
        return {
            "eq": first == second,
            "lt": first < second,  # type: ignore[operator]
            "gt": first > second,  # type: ignore[operator]
            "ne": first != second,
        }[condition.removesuffix("u")]

    return function


def halves(reference: Reference) -> Reference:
    """Apply a reference to both halves of words."""

    def function(*xs: int) -> int:
        low = reference(*(x & 0xFFFF for x in xs))
        high = reference(*(x >> 16 for x in xs))
        return low | high << 16

    return function


def converted(source: str, target: str, mode: str) -> Reference:
    """Return a conversion from a float or an integer to a float."""

    def function(x: int) -> int:
        if source in FORMATS:
            return encode(decode(x, source), target, mode, is_negative(x, source))
        return encode(Fraction(signed(x, width(source)) if source[0] == "s" else x), target, mode)

    return function


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def clamp32(value: int) -> int:
    return clamp(value, -(1 << 31), (1 << 31) - 1) & M32


def s32(value: int) -> int:
    return signed(value, 32)


def short_product(x: int, y: int, is_signed: bool, high: bool) -> int:
    parts = [signed(v, 24) if is_signed else v & 0xFFFFFF for v in (x, y)]
    return (parts[0] * parts[1] >> (16 if high else 0)) & M32


def two_products(x: int, y: int, z: int, signs: str, high: bool) -> int:
    total = z
    for part in range(2):
        first = x >> 16 * part & 0xFFFF
        second = y >> (8 * part + 16 * high) & 0xFF
        total += (signed(first, 16) if signs[0] == "s" else first) * (
            signed(second, 8) if signs[1] == "s" else second
        )
    return total & M32


def bit_mask(start: int, length: int, wrap: bool) -> int:
    if wrap:
        start, length = start & 31, length & 31
    if start >= 32:
        return 0
    return ((1 << min(length, 32)) - 1) << start & M32


def extended(x: int, length: int, is_signed: bool, wrap: bool) -> int:
    length = length & 31 if wrap else min(length, 32)
    if not length:
        return 0
    return (signed(x, length) if is_signed else x & ((1 << length) - 1)) & M32


def tf32(x: int) -> int:
    if x >> 23 & 0xFF == 0xFF:
        return x
    return (x + (1 << 12) & M32) & ~0x1FFF


def packed_integers(target: str, x: int, y: int, rest: int = 0) -> int:
    bits = int(target[1:])
    low = -(1 << (bits - 1)) if target[0] == "s" else 0
    top = (1 << (bits - (target[0] == "s"))) - 1
    upper, lower = (clamp(s32(v), low, top) & ((1 << bits) - 1) for v in (x, y))
    return (lower | upper << bits | rest << 2 * bits) & M32


def nth_set(mask: int, base: int, offset: int) -> int:
    offset = s32(offset)
    position, left = base, abs(offset) - 1 if offset else 0
    while 0 <= position < 32:
        if mask >> position & 1:
            if not left:
                return position
            left -= 1
        if not offset:
            break
        position += 1 if offset > 0 else -1
    return M32


def permuted(x: int, y: int, bytes_: str) -> int:
    pool = (x | y << 32).to_bytes(8, "little")
    return int.from_bytes([pool[int(place)] for place in bytes_], "big")
