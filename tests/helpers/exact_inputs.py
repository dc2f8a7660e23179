"""Inputs for the instructions of `exact_cases`, many of them edge cases."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from helpers.exact import FORMATS, encode, not_a_number
from helpers.exact_references import M32, width
from helpers.instruction_rows import THREADS
from numpy.typing import NDArray


def inputs_for(kind: str, seed: int = 5) -> NDArray[np.uint64]:
    """Return three inputs for each thread, many of them edge cases of a type."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 1 << 64, (3, THREADS), dtype=np.uint64)
    base = kind.removesuffix("x2")
    if base in FORMATS:
        bits = width(base)
        for place in range(0, 64, bits):
            shift, mask = np.uint64(place), np.uint64((1 << bits) - 1)
            part = _floats(base, random) & mask
            values = values & ~(mask << shift) | part << shift
        return values
    small = random.integers(0, 40, (3, THREADS), dtype=np.uint64)
    edges = np.array([0, 1, M32, 1 << 31, (1 << 31) - 1, 0xFFFFFF, 0x800000], np.uint64)
    chosen = edges[random.integers(0, len(edges), (3, THREADS))]
    kind_of = random.integers(0, 3, (3, THREADS))
    return np.where(kind_of == 0, small, np.where(kind_of == 1, chosen, values))


def _floats(kind: str, random: np.random.Generator) -> NDArray[np.uint64]:
    """Return numbers of one format: any bits, close to each other, and special ones."""
    exponent_bits, fraction_bits = FORMATS[kind]
    shape, total = (3, THREADS), 1 + exponent_bits + fraction_bits
    anything = random.integers(0, 1 << 63, shape, dtype=np.uint64) << np.uint64(1)
    anything = anything >> np.uint64(64 - total)
    bias = (1 << (exponent_bits - 1)) - 1
    exponents = (random.integers(-3, 4, shape) + bias).astype(np.uint64)
    close = exponents << np.uint64(fraction_bits)
    close |= anything & np.uint64((1 << fraction_bits) - 1 | 1 << (total - 1))
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, math.inf, -math.inf]
    special = [encode(Fraction(n) if math.isfinite(n) else n, kind) for n in numbers]
    largest = (((1 << exponent_bits) - 1) << fraction_bits) - 1
    special += [1, 2, (1 << fraction_bits) - 1, 1 << fraction_bits, largest, not_a_number(kind)]
    special += [bits | 1 << (total - 1) for bits in special]
    chosen = np.array(special, np.uint64)[random.integers(0, len(special), shape)]
    which = random.integers(0, 3, shape)
    return np.where(which == 0, anything, np.where(which == 1, close, chosen))
