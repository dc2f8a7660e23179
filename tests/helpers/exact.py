"""Floating-point arithmetic done exactly, then rounded: what instructions are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

#: Bits of exponent and fraction.
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
NAN = "nan"
#: A finite number, an infinity or a NaN.
Number = Fraction | float | str


def decode(bits: int, kind: str) -> Number:
    """Return what bits mean; a zero is a Fraction without its sign."""
    exponent_bits, fraction_bits = FORMATS[kind]
    sign = -1 if bits >> (exponent_bits + fraction_bits) & 1 else 1
    exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return NAN if fraction else sign * math.inf
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent:
        fraction += 1 << fraction_bits
    scale = max(exponent, 1) - bias - fraction_bits
    return sign * Fraction(fraction) * Fraction(2) ** scale


def is_negative(bits: int, kind: str) -> bool:
    """Return the sign."""
    return bool(bits >> sum(FORMATS[kind]) & 1)


def not_a_number(kind: str) -> int:
    """Return the bits of a NaN."""
    exponent_bits, fraction_bits = FORMATS[kind]
    return ((2 << exponent_bits) - 1) << (fraction_bits - 1)


def encode(value: Number, kind: str, mode: str = "rn", negative_zero: bool = False) -> int:
    """Round a number to a format."""
    exponent_bits, fraction_bits = FORMATS[kind]
    sign_bit = 1 << (exponent_bits + fraction_bits)
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    if value == NAN:
        return not_a_number(kind)
    if isinstance(value, float):
        return infinity | (sign_bit if value < 0 else 0)
    assert isinstance(value, Fraction)
    if value == 0:
        return sign_bit if negative_zero else 0
    sign = sign_bit if value < 0 else 0
    size = abs(value)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, 1 - bias) - fraction_bits)
    steps, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and steps % 2 == 1),
        "rz": False,
        "rm": bool(rest) and value < 0,
        "rp": bool(rest) and value > 0,
    }[mode]
    steps += up
    # Steps of subnormal numbers are their bits; others have an exponent above.
    bits = int(steps) + max(exponent + bias - 1, 0) * (1 << fraction_bits)
    if bits >= infinity:
        away = {"rn": True, "rz": False, "rm": value < 0, "rp": value > 0}[mode]
        bits = infinity if away else infinity - 1
    return bits | sign


def operation(name: str, kind: str, mode: str) -> Callable[..., int]:
    """Return ``add``, ``sub``, ``mul``, ``div``, ``fma``, ``sqrt`` or ``rcp`` on bits."""

    def add(x: int, y: int) -> int:
        first, second = decode(x, kind), decode(y, kind)
        both = is_negative(x, kind) and is_negative(y, kind)
        either = is_negative(x, kind) or is_negative(y, kind)
        total = _sum(first, second)
        zeros = first == 0 and second == 0
        # An exact zero is negative if both terms are, and, rounding down, if they cancel.
        negative = both or (mode == "rm" and (either if zeros else True))
        return encode(total, kind, mode, negative)

    def multiply(x: int, y: int) -> int:
        first, second = decode(x, kind), decode(y, kind)
        negative = is_negative(x, kind) != is_negative(y, kind)
        return encode(_product(first, second, negative), kind, mode, negative)

    def divide(x: int, y: int) -> int:
        first, second = decode(x, kind), decode(y, kind)
        negative = is_negative(x, kind) != is_negative(y, kind)
        if NAN in (first, second):
            return not_a_number(kind)
        if isinstance(second, float):
            quotient: Number = NAN if isinstance(first, float) else Fraction(0)
        elif second == 0:
            quotient = NAN if first == 0 else -math.inf if negative else math.inf
        elif isinstance(first, float):
            quotient = -math.inf if negative else math.inf
        else:
            quotient = first / second  # type: ignore[operator]
        return encode(quotient, kind, mode, negative)

    def fused(x: int, y: int, z: int) -> int:
        negative = is_negative(x, kind) != is_negative(y, kind)
        product = _product(decode(x, kind), decode(y, kind), negative)
        third = decode(z, kind)
        below = is_negative(z, kind)
        zeros = product == 0 and third == 0
        sign = (negative and below) or (mode == "rm" and ((negative or below) if zeros else True))
        return encode(_sum(product, third), kind, mode, sign)

    def root(x: int) -> int:
        value = decode(x, kind)
        if value == NAN or (value != 0 and is_negative(x, kind)):
            return not_a_number(kind)
        if isinstance(value, float) or value == 0:
            return x
        # To many more bits than the format has; the last one says that there are others.
        assert isinstance(value, Fraction)
        scale = 2 * (160 + value.denominator.bit_length())
        whole = value.numerator * (1 << scale) // value.denominator
        found = math.isqrt(whole)
        exact = found * found * value.denominator == value.numerator * (1 << scale)
        precise = Fraction(2 * found + (not exact), 2 * (1 << (scale // 2)))
        return encode(precise, kind, mode)

    def reciprocal(x: int) -> int:
        one = encode(Fraction(1), kind)
        return divide(one, x)

    sign = 1 << sum(FORMATS[kind])
    table: dict[str, Callable[..., int]] = {
        "add": add,
        "sub": lambda x, y: add(x, y ^ sign),
        "mul": multiply,
        "div": divide,
        "fma": fused,
        "sqrt": root,
        "rcp": reciprocal,
    }
    return table[name]


def _sum(first: Number, second: Number) -> Number:
    if NAN in (first, second):
        return NAN
    if isinstance(first, float) or isinstance(second, float):
        infinite = {value for value in (first, second) if isinstance(value, float)}
        return NAN if len(infinite) > 1 else infinite.pop()
    return first + second  # type: ignore[operator]


def _product(first: Number, second: Number, negative: bool) -> Number:
    if NAN in (first, second):
        return NAN
    if isinstance(first, float) or isinstance(second, float):
        if first == 0 or second == 0:
            return NAN
        return -math.inf if negative else math.inf
    return first * second  # type: ignore[operator]
