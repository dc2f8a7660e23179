"""Matrix instructions of a warp: ``mma``, ``ldmatrix`` and ``movmatrix``.

A lane's registers hold parts of a row of A and of a column of B, in packets of four lanes: with
*e* elements a register, register *r* of lane ``4 * g + t`` holds the elements from
``k = 4 * e * r + e * t`` on of row or column *g*. A has two such rows, 8 apart, in turn. So for
its part of the result, rows *g* and ``g + 8`` and columns ``2 * t`` and the next, a lane looks
at twelve others.

Products are exact and summed in double precision, and the sum is rounded once. A GPU rounds
differently within the last bits, and each generation in a way of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from outlast.server.drivers.emulated.lower.builder import B32, B64, Builder
from outlast.server.drivers.emulated.lower.memory import checked, memory_space
from outlast.server.drivers.emulated.lower.pause import exchange, own_lane, seen
from outlast.server.drivers.emulated.lower.registry import lowers
from outlast.server.drivers.emulated.lower.rounding import narrow_double
from outlast.server.drivers.emulated.ptx.nodes import (
    SCALARS,
    Address,
    Instruction,
    Operand,
    Scalar,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx
from outlast.server.drivers.emulated.runtime import MATRIX_BYTES, load_word

_SHAPES = {
    "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4",),
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "u8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "s4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "u4": ("m8n8k32", "m16n8k32", "m16n8k64"),
}
ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}
_SHAPE_WORDS = " ".join(sorted({shape for shapes in _SHAPES.values() for shape in shapes}))
WHOLE_WARP = "-1"
#: Computes a lane's part of a result from what lanes have shown, and the terms it is added to.
Sums = Callable[[str, list[str]], list[str]]


@dataclass(frozen=True)
class Product:
    """The shape and the types of an ``mma``."""

    m: int
    k: int
    first: str
    second: str
    result: Scalar
    saturate: bool

    @property
    def bits(self) -> int:
        """Bits of an element of A and B."""
        return ELEMENT_BITS[self.first]

    @property
    def name(self) -> str:
        """What a function that computes it is called."""
        name = f"m{self.m}k{self.k}.{self.first}.{self.second}.{self.result.name}"
        return name + (".sat" if self.saturate else "")

    @property
    def register_bits(self) -> int:
        """Bits of a register of A and B."""
        return max(self.bits, 32)

    @property
    def chunks(self) -> int:
        """Registers of a lane for one row of A, or one column of B."""
        return self.k * self.bits // (4 * self.register_bits)

    @property
    def rows(self) -> int:
        """Rows of A that a lane has."""
        return self.m // 8

    @property
    def is_float(self) -> bool:
        """Whether sums are floats."""
        return self.result.is_float


@lowers(
    "mma",
    operands=4,
    words=f"sync aligned row col satfinite s4 u4 {_SHAPE_WORDS}",
    types="f16 bf16 tf32 f32 f64 s8 u8 s32",
)
def multiply(b: Builder, ins: Instruction) -> None:
    """Lower ``mma``: every lane shows its parts of A and B, and computes its part of the result."""
    product = _product(ins)
    unit = SCALARS[f"b{product.register_bits}"]
    parts = registers(ins, ins.operands[1], product.rows * product.chunks)
    parts += registers(ins, ins.operands[2], product.chunks)
    shown = show(b, [b.value(part, unit) for part in parts], unit)
    packed = product.result.bits == 16
    count = 2 * product.rows
    terms = registers(ins, ins.operands[3], count // 2 if packed else count)
    values = terms_of(b, terms, product.result)

    def sums(place: str, names: list[str]) -> list[str]:
        return _sums(b, product, place, names)

    found = call_once(b, f"mma.{product.name}", product.result, shown, values, sums)
    give(b, registers(ins, ins.operands[0], len(terms)), found, product.result)


def give(b: Builder, targets: list[Operand], values: list[str], kind: Scalar) -> None:
    """Write results into registers, two halves into one."""
    if kind.bits != 16:
        for target, value in zip(targets, values, strict=True):
            b.assign(target, kind, value)
        return
    for i, target in enumerate(targets):
        low, high = (
            b.cast("zext", "i16", b.to_bits(value, kind), "i32")
            for value in values[2 * i : 2 * i + 2]
        )
        b.assign(target, B32, b.op("or", "i32", low, b.op("shl", "i32", high, 16)))


def _product(ins: Instruction) -> Product:
    shape = next(
        (re.fullmatch(r"m(\d+)n8k(\d+)", part) for part in ins.opcode if "n8k" in part), None
    )
    types = [part for part in ins.opcode[1:] if part in SCALARS or part in ELEMENT_BITS]
    if shape is None or len(types) != 4:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    result, first, second, term = types
    floats = first in _RESULTS
    fits = (
        shape.group() in _SHAPES.get(first, ())
        and result == term
        and result in _RESULTS.get(first, ("s32",))
        and (first == second if floats else ELEMENT_BITS[first] == ELEMENT_BITS.get(second))
        and tuple(word for word in ins.opcode if word in ("row", "col")) == ("row", "col")
    )
    if not fits:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    m, k = int(shape[1]), int(shape[2])
    return Product(m, k, first, second, SCALARS[result], "satfinite" in ins.opcode)


def registers(ins: Instruction, operand: Operand, count: int) -> list[Operand]:
    """Return the registers of a vector, of which there must be so many."""
    items: list[Operand] = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise InvalidPtx(f"{ins.text} needs {count} registers, not {len(items)}", ins.line)
    return items


def terms_of(b: Builder, registers: list[Operand], kind: Scalar) -> list[str]:
    """Return the numbers in registers, of which one may hold two halves."""
    if kind.bits != 16:
        return [b.value(register, kind) for register in registers]
    found = []
    for register in registers:
        bits = b.value(register, B32)
        parts = (bits, b.op("lshr", "i32", bits, 16))
        found += [b.from_bits(b.cast("trunc", "i32", part, "i16"), kind) for part in parts]
    return found


def show(b: Builder, values: list[str], kind: Scalar) -> str:
    """Show registers to the warp; return a pointer to what its first lane has shown.

    Lanes go on one after another, so one that is ahead must not write over what others have yet
    to read: it writes into the other half of its bytes.
    """
    b.slots[:0] = [] if "  %half = alloca i32" in b.slots else _HALF
    half = b.op("xor", "i32", b.let("load i32, ptr %half"), MATRIX_BYTES // 2)
    b.emit(f"store i32 {half}, ptr %half")
    b.declarations.add(_PLACE)
    own = b.let(f"call ptr @matrix_place(ptr %w, i32 %lin, i32 {half})")
    for i, value in enumerate(values):
        place = b.let(f"getelementptr {kind.integer}, ptr {own}, i64 {i}")
        b.emit(f"store {kind.integer} {value}, ptr {place}")
    exchange(b, "0", WHOLE_WARP)
    first = b.op("and", "i32", "%lin", -32)
    half = b.let("load i32, ptr %half")
    return b.let(f"call ptr @matrix_place(ptr %w, i32 {first}, i32 {half})")


_HALF = ["  %half = alloca i32", "  store i32 0, ptr %half"]
_PLACE = f"""
define internal ptr @matrix_place(ptr %w, i32 %thread, i32 %half) {{
{load_word("matrix")}
  %start = mul i32 %thread, {MATRIX_BYTES}
  %offset = add i32 %start, %half
  %place = getelementptr i8, ptr %matrix, i32 %offset
  ret ptr %place
}}
"""


def call_once(
    b: Builder, name: str, kind: Scalar, shown: str, terms: list[str], sums: Sums
) -> list[str]:
    """Call a function that computes a lane's part of a result; its code is there once."""
    t = kind.llvm
    structure = f"{{ {', '.join([t] * len(terms))} }}"
    if name not in b.helpers:
        b.helpers.add(name)
        names = [f"%c{i}" for i in range(len(terms))]
        lines, b.lines = b.lines, []
        result = "poison"
        for i, value in enumerate(sums("%shown", names)):
            result = b.let(f"insertvalue {structure} {result}, {t} {value}, {i}")
        b.emit(f"ret {structure} {result}")
        body, b.lines = b.lines, lines
        formal = ", ".join(f"{t} {value}" for value in names)
        head = f"define internal {structure} @{name}(ptr %shown, i32 %lin, {formal}) noinline {{"
        b.declarations.add("\n".join([head, *body, "}"]))
    given = ", ".join(f"{t} {value}" for value in terms)
    found = b.let(f"call {structure} @{name}(ptr {shown}, i32 %lin, {given})")
    return [b.let(f"extractvalue {structure} {found}, {i}") for i in range(len(terms))]


def _sums(b: Builder, product: Product, shown: str, terms: list[str]) -> list[str]:
    lane = own_lane(b)
    group, member = b.op("lshr", "i32", lane, 2), b.op("and", "i32", lane, 3)
    start = product.rows * product.chunks
    rows = [
        _elements(b, product, product.first, shown, group, range(row, start, product.rows))
        for row in range(product.rows)
    ]
    columns = []
    for column in range(2):
        number = b.op("add", "i32", b.op("shl", "i32", member, 1), column)
        places = range(start, start + product.chunks)
        columns.append(_elements(b, product, product.second, shown, number, places))
    return [
        product_sum(b, product, rows[i // 2], columns[i % 2], term) for i, term in enumerate(terms)
    ]


def _elements(
    b: Builder, product: Product, name: str, shown: str, group: str, places: range
) -> list[str]:
    """Return the elements of one row or column, in the order of k, ready to be multiplied."""
    found = []
    t = f"i{product.register_bits}"
    first = b.op("shl", "i32", group, 2)
    for place in places:
        for member in range(4):
            lane = b.op("add", "i32", first, member)
            offset = b.op("mul", "i32", lane, MATRIX_BYTES)
            offset = b.op("add", "i32", offset, place * product.register_bits // 8)
            word = b.let(f"load {t}, ptr {b.let(f'getelementptr i8, ptr {shown}, i32 {offset}')}")
            found += [
                _number(b, name, word, product, i)
                for i in range(product.register_bits // product.bits)
            ]
    return found


def _number(b: Builder, name: str, word: str, product: Product, index: int) -> str:
    """Return an element of a register, as a double or a 32-bit integer."""
    if product.bits >= 32:
        return number_of(b, name, word)
    part = b.op("lshr", "i32", word, index * product.bits) if index else word
    return number_of(b, name, b.cast("trunc", "i32", part, f"i{product.bits}"))


def number_of(b: Builder, name: str, bits: str) -> str:
    """Return an element as a double or a 32-bit integer, ready to be multiplied."""
    if name == "f64":
        return b.cast("bitcast", "i64", bits, "double")
    if name == "tf32":
        kept = b.op("and", "i32", bits, -1 << 13)  # the rest of the fraction is not looked at
        return b.cast("fpext", "float", b.cast("bitcast", "i32", kept, "float"), "double")
    if name in SCALARS and SCALARS[name].is_float:
        kind = SCALARS[name]
        return b.cast("fpext", kind.llvm, b.from_bits(bits, kind), "double")
    return b.cast("sext" if name[0] == "s" else "zext", f"i{ELEMENT_BITS[name]}", bits, "i32")


def product_sum(b: Builder, product: Product, row: list[str], column: list[str], term: str) -> str:
    """Return a row times a column, added to a term and rounded to the result's type."""
    if product.is_float:
        total = term
        if product.result.bits != 64:
            total = b.cast("fpext", product.result.llvm, term, "double")
        for x, y in zip(row, column, strict=True):
            arguments = (f"double {value}" for value in (x, y, total))
            total = b.intrinsic("double", "llvm.fma.f64", *arguments)
        return narrow_double(b, total, product.result)
    wide = "i64" if product.saturate else "i32"
    total = b.resize(term, 32, 64, signed=True) if product.saturate else term
    for x, y in zip(row, column, strict=True):
        part = b.op("mul", "i32", x, y)
        if product.saturate:
            part = b.resize(part, 32, 64, signed=True)
        total = b.op("add", wide, total, part)
    if not product.saturate:
        return total
    total = b.intrinsic("i64", "llvm.smin.i64", f"i64 {total}", f"i64 {(1 << 31) - 1}")
    total = b.intrinsic("i64", "llvm.smax.i64", f"i64 {total}", f"i64 {-(1 << 31)}")
    return b.cast("trunc", "i64", total, "i32")


@lowers(
    "ldmatrix", operands=2, words="sync aligned m8n8 x1 x2 x4 trans shared shared::cta", types="b16"
)
def load_matrix(b: Builder, ins: Instruction) -> None:
    """Lower ``ldmatrix``: matrices of eight rows, each of which one lane says where it is."""
    count = next((int(part[1]) for part in ins.opcode if part in ("x1", "x2", "x4")), 0)
    operand = ins.operands[1]
    if not count or "m8n8" not in ins.opcode or not isinstance(operand, Address):
        raise InvalidPtx(f"{ins.text} needs a count and an address", ins.line)
    targets = registers(ins, ins.operands[0], count)
    exchange(b, b.value(operand, B64), WHOLE_WARP)
    lane = own_lane(b)
    group, member = b.op("lshr", "i32", lane, 2), b.op("and", "i32", lane, 3)
    for matrix, target in enumerate(targets):
        if "trans" not in ins.opcode:
            word = _row_part(b, ins, 8 * matrix, group, b.op("shl", "i32", member, 2), "i32")
        else:
            word = "0"
            for i in range(2):
                row = b.op("add", "i32", b.op("shl", "i32", member, 1), i)
                part = _row_part(b, ins, 8 * matrix, row, b.op("shl", "i32", group, 1), "i16")
                part = b.op("shl", "i32", b.cast("zext", "i16", part, "i32"), 16 * i)
                word = b.op("or", "i32", word, part)
        b.assign(target, B32, word)


def _row_part(b: Builder, ins: Instruction, first: int, row: str, offset: str, kind: str) -> str:
    """Return what lies at an offset in a row of 16 bytes."""
    address = seen(b, b.op("add", "i32", row, first))
    start = checked(b, ins, address, 16, memory_space(ins))
    place = b.let(f"getelementptr i8, ptr {start}, i32 {offset}")
    return b.let(f"load {kind}, ptr {place}")


@lowers("movmatrix", operands=2, words="sync aligned m8n8 trans", types="b16")
def transpose_matrix(b: Builder, ins: Instruction) -> None:
    """Lower ``movmatrix``: transpose a matrix that the warp holds."""
    exchange(b, b.resize(b.value(ins.operands[1], B32), 32, 64), WHOLE_WARP)
    lane = own_lane(b)
    row = b.op("lshr", "i32", lane, 2)
    column = b.op("shl", "i32", b.op("and", "i32", lane, 3), 1)
    word = "0"
    for i in range(2):
        # Element (row, column) of the result is element (column, row) of the source.
        source = b.op("shl", "i32", b.op("add", "i32", column, i), 2)
        source = b.op("add", "i32", source, b.op("lshr", "i32", row, 1))
        shown = b.cast("trunc", "i64", seen(b, source), "i32")
        shift = b.op("shl", "i32", b.op("and", "i32", row, 1), 4)
        part = b.op("and", "i32", b.op("lshr", "i32", shown, shift), 0xFFFF)
        word = b.op("or", "i32", word, b.op("shl", "i32", part, 16 * i))
    b.assign(ins.operands[0], B32, word)
