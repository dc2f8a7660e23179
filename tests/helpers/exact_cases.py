"""Instructions with what they must give, computed exactly: rounding, flushing, packed types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from helpers.exact import encode, operation
from helpers.exact_references import (
    M32,
    PICKS,
    Reference,
    bit_mask,
    clamp32,
    compare,
    converted,
    extended,
    extreme,
    flushed,
    halves,
    nth_set,
    packed_integers,
    permuted,
    relu,
    s32,
    saturated,
    short_product,
    tf32,
    two_products,
    with_flush,
    xor_sign,
)
from helpers.instruction_rows import Row


@dataclass(frozen=True)
class Case:
    """An instruction and its reference, which maps the bits of sources to those of the result."""

    instruction: str
    result: str
    sources: tuple[str, ...]
    reference: Reference

    @property
    def row(self) -> Row:
        """What the kernel needs."""
        return self.instruction, self.result, list(self.sources)


def arithmetic() -> list[Case]:
    """Rounding modes of both precisions."""
    found = []
    for mode in ("rn", "rz", "rm", "rp"):
        for kind in ("f64", "f32"):
            for name, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3)):
                reference = operation(name, kind, mode)
                found.append(Case(f"{name}.{mode}.{kind}", kind, (kind,) * count, reference))
            for name in ("sqrt", "rcp"):
                reference = operation(name, kind, mode)
                found.append(Case(f"{name}.{mode}.{kind}", kind, (kind,), reference))
    return found


def conversions() -> list[Case]:
    """Conversions with a rounding, and those that pack two values."""
    found = []
    for mode in ("rn", "rz", "rm", "rp"):
        pairs = [("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("s64", "f32"), ("u64", "f32")]
        pairs += [("s64", "f64"), ("u64", "f64"), ("s32", "f16"), ("u32", "f32"), ("s32", "f32")]
        for source, target in pairs:
            reference = converted(source, target, mode)
            found.append(Case(f"cvt.{mode}.{target}.{source}", target, (source,), reference))
    for mode in ("rn", "rz"):
        for small in ("f16", "bf16"):
            one = converted("f32", small, mode)
            positive = relu(small, one)

            def both(x: int, y: int, one: Reference = one) -> int:
                return one(x) << 16 | one(y)

            def both_relu(x: int, y: int, one: Reference = positive) -> int:
                return one(x) << 16 | one(y)

            types, sources = f"{small}x2.f32", ("f32", "f32")
            found.append(Case(f"cvt.{mode}.{types}", f"{small}x2", sources, both))
            found.append(Case(f"cvt.{mode}.relu.{types}", f"{small}x2", sources, both_relu))
    found += [
        Case("cvt.rz.bf16.f32", "bf16", ("f32",), converted("f32", "bf16", "rz")),
        Case("cvt.rn.relu.f16.f32", "f16", ("f32",), relu("f16", converted("f32", "f16", "rn"))),
        Case(
            "cvt.rn.relu.bf16.f32", "bf16", ("f32",), relu("bf16", converted("f32", "bf16", "rn"))
        ),
        Case("cvt.rna.tf32.f32", "b32", ("f32",), tf32),
        Case("cvt.ftz.f32.f16", "f32", ("f16",), converted("f16", "f32", "rn")),
        Case(
            "cvt.ftz.f64.f32",
            "f64",
            ("f32",),
            lambda x: converted("f32", "f64", "rn")(flushed(x, "f32")),
        ),
        Case("cvt.pack.sat.u8.s32.b32", "b32", ("b32",) * 3, lambda *x: packed_integers("u8", *x)),
        Case("cvt.pack.sat.s8.s32.b32", "b32", ("b32",) * 3, lambda *x: packed_integers("s8", *x)),
        Case("cvt.pack.sat.u16.s32", "b32", ("b32",) * 2, lambda *x: packed_integers("u16", *x)),
        Case("cvt.pack.sat.s16.s32", "b32", ("b32",) * 2, lambda *x: packed_integers("s16", *x)),
    ]
    return found


def flushing() -> list[Case]:
    """What ``.ftz`` changes."""
    kind = "f32"
    unary = [("sqrt.rn", "sqrt", 1), ("rcp.rn", "rcp", 1)]
    binary = [
        ("add.rn", "add", 2),
        ("sub.rz", "sub", 2),
        ("mul.rn", "mul", 2),
        ("div.rn", "div", 2),
    ]
    found = []
    for name, short, count in (*unary, *binary, ("fma.rn", "fma", 3)):
        mode = name.split(".")[1]
        reference = with_flush(kind, operation(short, kind, mode))
        found.append(Case(f"{name}.ftz.{kind}", kind, (kind,) * count, reference))
        if short in ("add", "mul", "fma"):
            sat = saturated(kind, reference)
            found.append(Case(f"{name}.ftz.sat.{kind}", kind, (kind,) * count, sat))
    sign = 1 << 31
    less = compare(kind, "lt")
    found += [
        Case("min.ftz.f32", kind, (kind,) * 2, with_flush(kind, extreme(kind, False))),
        Case("max.ftz.f32", kind, (kind,) * 2, with_flush(kind, extreme(kind, True))),
        Case("neg.ftz.f32", kind, (kind,), with_flush(kind, lambda x: x ^ sign)),
        Case("abs.ftz.f32", kind, (kind,), with_flush(kind, lambda x: x & ~sign)),
        Case(
            "setp.lt.ftz.f32",
            "pred",
            (kind,) * 2,
            lambda x, y: int(less(flushed(x, kind), flushed(y, kind))),
        ),
        Case(
            "set.lt.ftz.u32.f32",
            "b32",
            (kind,) * 2,
            lambda x, y: M32 * less(flushed(x, kind), flushed(y, kind)),
        ),
        Case("min.xorsign.abs.f32", kind, (kind,) * 2, xor_sign(kind, extreme(kind, False))),
        Case(
            "max.NaN.xorsign.abs.f32", kind, (kind,) * 2, xor_sign(kind, extreme(kind, True, True))
        ),
    ]
    return found


def small_floats() -> list[Case]:
    """Half and bfloat16, alone and in pairs."""
    found = []
    for kind in ("f16", "bf16"):
        fused = operation("fma", kind, "rn")
        singles: list[tuple[str, int, Reference]] = [
            ("fma.rn", 3, fused),
            ("fma.rn.relu", 3, relu(kind, fused)),
            ("min", 2, extreme(kind, False)),
            ("max", 2, extreme(kind, True)),
            ("min.NaN", 2, extreme(kind, False, True)),
            ("max.NaN.xorsign.abs", 2, xor_sign(kind, extreme(kind, True, True))),
            ("neg", 1, lambda x: x ^ 0x8000),
            ("abs", 1, lambda x: x & 0x7FFF),
        ]
        if kind == "f16":
            for name in ("add", "sub", "mul"):
                plain = operation(name, kind, "rn")
                singles += [
                    (name, 2, plain),
                    (f"{name}.rn", 2, plain),
                    (f"{name}.ftz", 2, with_flush(kind, plain)),
                    (f"{name}.sat", 2, saturated(kind, plain)),
                ]
            singles.append(("fma.rn.ftz.relu", 3, relu(kind, with_flush(kind, fused))))
            singles.append(("fma.rn.sat", 3, saturated(kind, fused)))
        for name, count, reference in singles:
            found.append(Case(f"{name}.{kind}", kind, (kind,) * count, reference))
            pair = f"{kind}x2"
            found.append(Case(f"{name}.{pair}", pair, (pair,) * count, halves(reference)))
        found += _comparisons(kind)
    return found


def _comparisons(kind: str) -> list[Case]:
    pair, one = f"{kind}x2", encode(Fraction(1), kind)
    found = []
    for condition in ("eq", "lt", "gtu", "ne"):
        test = compare(kind, condition)

        def outcomes(x: int, y: int, test: Callable[[int, int], bool] = test) -> int:
            return test(x & 0xFFFF, y & 0xFFFF) | test(x >> 16, y >> 16) << 1

        def as_floats(x: int, y: int, both: Reference = outcomes) -> int:
            return one * (both(x, y) & 1) | one * (both(x, y) >> 1) << 16

        def as_masks(x: int, y: int, both: Reference = outcomes) -> int:
            return 0xFFFF * (both(x, y) & 1) | 0xFFFF * (both(x, y) >> 1) << 16

        def single(x: int, y: int, test: Callable[[int, int], bool] = test) -> int:
            return int(test(x, y))

        found += [
            Case(f"setp.{condition}.{pair}", "preds", (pair, pair), outcomes),
            Case(f"set.{condition}.{pair}.{pair}", pair, (pair, pair), as_floats),
            Case(f"set.{condition}.u32.{pair}", "b32", (pair, pair), as_masks),
            Case(f"setp.{condition}.{kind}", "pred", (kind, kind), single),
        ]
    return found


def integers() -> list[Case]:
    """Saturation, short products and bit fields."""
    found = [
        Case("add.sat.s32", "b32", ("b32",) * 2, lambda x, y: clamp32(s32(x) + s32(y))),
        Case("sub.sat.s32", "b32", ("b32",) * 2, lambda x, y: clamp32(s32(x) - s32(y))),
        Case(
            "mad.hi.sat.s32",
            "b32",
            ("b32",) * 3,
            lambda x, y, z: clamp32((s32(x) * s32(y) >> 32) + s32(z)),
        ),
        Case("mad24.hi.sat.s32", "b32", ("b32",) * 3, _mad24_saturated),
        Case("fns.b32", "b32", ("b32", "b32", "b32"), lambda m, b, o: nth_set(m, b, o)),
    ]
    for kind in ("s32", "u32"):
        is_signed = kind == "s32"
        for part in ("lo", "hi"):

            def product(x: int, y: int, s: bool = is_signed, h: bool = part == "hi") -> int:
                return short_product(x, y, s, h)

            def product_sum(
                x: int, y: int, z: int, s: bool = is_signed, h: bool = part == "hi"
            ) -> int:
                return short_product(x, y, s, h) + z & M32

            found.append(Case(f"mul24.{part}.{kind}", "b32", ("b32",) * 2, product))
            found.append(Case(f"mad24.{part}.{kind}", "b32", ("b32",) * 3, product_sum))
            for other in ("s32", "u32"):

                def dot(
                    x: int,
                    y: int,
                    z: int,
                    signs: str = kind[0] + other[0],
                    h: bool = part == "hi",
                ) -> int:
                    return two_products(x, y, z, signs, h)

                found.append(Case(f"dp2a.{part}.{kind}.{other}", "b32", ("b32",) * 3, dot))
        for mode in ("clamp", "wrap"):

            def extension(x: int, n: int, s: bool = is_signed, wrap: bool = mode == "wrap") -> int:
                return extended(x, n, s, wrap)

            found.append(Case(f"szext.{mode}.{kind}", "b32", ("b32", "b32"), extension))
    for name, picks in PICKS.items():

        def picked(x: int, y: int, c: int, picks: str = picks) -> int:
            return permuted(x, y, picks.split()[c & 3])

        found.append(Case(f"prmt.b32.{name}", "b32", ("b32",) * 3, picked))
    for mode in ("clamp", "wrap"):

        def mask(x: int, n: int, wrap: bool = mode == "wrap") -> int:
            return bit_mask(x, n, wrap)

        found.append(Case(f"bmsk.{mode}.b32", "b32", ("b32", "b32"), mask))
    return found


def _mad24_saturated(x: int, y: int, z: int) -> int:
    return clamp32(s32(short_product(x, y, True, True)) + s32(z))


def all_cases() -> list[Case]:
    """Return every case."""
    return [*arithmetic(), *conversions(), *flushing(), *small_floats(), *integers()]
