"""``wmma``: matrices that a warp loads, multiplies and stores as a whole.

Which lane holds which element is not defined, so it is chosen here: the elements of A row by row,
those of B column by column and those of C and D row by row, as many in a row for each lane as
its share is. Registers beyond a lane's share, which PTX has for some shapes, are zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.server.drivers.emulated.lower.builder import B32, B64, U32, Builder
from outlast.server.drivers.emulated.lower.matrices import (
    ELEMENT_BITS,
    Product,
    call_once,
    give,
    number_of,
    product_sum,
    registers,
    show,
    terms_of,
)
from outlast.server.drivers.emulated.lower.memory import checked, memory_space
from outlast.server.drivers.emulated.lower.pause import own_lane
from outlast.server.drivers.emulated.lower.registry import lowers
from outlast.server.drivers.emulated.ptx.nodes import (
    SCALARS,
    Address,
    Instruction,
    Operand,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx
from outlast.server.drivers.emulated.runtime import MATRIX_BYTES

_BYTE_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _BYTE_SHAPES),
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
}
_RESULTS = {
    "f16": ("f16", "f32"),
    **dict.fromkeys(("bf16", "tf32"), ("f32",)),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
    "f64": ("f64",),
}
_TYPES = "f16 bf16 tf32 f64 s8 u8 f32 s32"


@dataclass(frozen=True)
class _Tile:
    """A matrix of a warp."""

    #: Rows, or columns, that follow each other in the order of elements, and their length.
    lines: int
    length: int
    #: Its elements' type, and whether a line's elements lie next to each other in memory.
    kind: str
    together: bool

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return SCALARS[self.kind].bits if self.kind in SCALARS else ELEMENT_BITS[self.kind]

    @property
    def share(self) -> int:
        """Elements of a lane."""
        return self.lines * self.length // 32

    @property
    def held(self) -> int:
        """Registers that a lane's share needs."""
        return max(1, self.share * self.bits // max(32, self.bits))


def _shape(ins: Instruction) -> tuple[int, int, int]:
    for part in ins.opcode:
        found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", part)
        if found:
            return int(found[1]), int(found[2]), int(found[3])
    raise InvalidPtx(f"{ins.text} has no shape", ins.line)


def _tile(ins: Instruction, which: str, kind: str, order: str) -> _Tile:
    """Return the matrix that a word of the opcode names, stored by rows or by columns."""
    m, n, k = _shape(ins)
    if which in "ab":
        shapes = list(_SHAPES.get(kind, ()))
    else:
        shapes = [
            shape for t, results in _RESULTS.items() if kind in results for shape in _SHAPES[t]
        ]
    if f"m{m}n{n}k{k}" not in shapes:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    lines, length = {"a": (m, k), "b": (n, k)}.get(which, (m, n))
    return _Tile(lines, length, kind, order == ("col" if which == "b" else "row"))


@lowers(
    "wmma",
    operands=(2, 4),
    words="load store mma a b c d sync aligned row col satfinite rn global shared shared::cta "
    + " ".join(sorted({shape for shapes in _SHAPES.values() for shape in shapes})),
    types=_TYPES,
)
def tile(b: Builder, ins: Instruction) -> None:
    """Lower ``wmma``."""
    action = ins.opcode[1] if len(ins.opcode) > 1 else ""
    orders = [word for word in ins.opcode if word in ("row", "col")]
    if action == "mma" and len(orders) == 2 and len(ins.operands) == 4:
        _multiply(b, ins)
    elif action in ("load", "store") and len(orders) == 1 and 2 <= len(ins.operands) <= 3:
        which = ins.opcode[2]
        if which not in ("abc" if action == "load" else "d"):
            raise InvalidPtx(f"{ins.text} names no matrix", ins.line)
        found = _tile(ins, which, ins.opcode[-1], orders[0])
        (_load if action == "load" else _store)(b, ins, found)
    else:
        raise InvalidPtx(f"{ins.text} is no instruction", ins.line)


def _places(b: Builder, ins: Instruction, operand: Operand, found: _Tile) -> list[str]:
    """Return checked pointers to the elements of the thread's lane."""
    if not isinstance(operand, Address):
        raise InvalidPtx(f"{ins.text} needs an address", ins.line)
    start, size = b.value(operand, B64), found.bits // 8
    stride = str(found.length if found.together else found.lines)
    if len(ins.operands) > 2:
        stride = b.resize(b.value(ins.operands[2], U32), 32, 64)
    first = b.op("mul", "i64", b.resize(own_lane(b), 32, 64), found.share)
    line = b.op("udiv", "i64", first, found.length)
    column = b.op("urem", "i64", first, found.length)
    places = []
    for i in range(found.share):
        inner = b.op("add", "i64", column, i)
        outer, step = (line, inner) if found.together else (inner, line)
        offset = b.op("add", "i64", b.op("mul", "i64", outer, stride), step)
        address = b.op("add", "i64", start, b.op("mul", "i64", offset, size))
        places.append(checked(b, ins, address, size, memory_space(ins)))
    return places


def _load(b: Builder, ins: Instruction, found: _Tile) -> None:
    t = f"i{found.bits}"
    values = [b.let(f"load {t}, ptr {p}") for p in _places(b, ins, ins.operands[1], found)]
    targets = _vector(ins, ins.operands[0], found)
    count = max(1, 32 // found.bits)
    for i, target in enumerate(targets):
        if found.bits >= 32:
            b.assign(target, SCALARS[f"b{found.bits}"], values[i])
            continue
        word = "0"
        for place, value in enumerate(values[i * count : (i + 1) * count]):
            wide = b.op("shl", "i32", b.cast("zext", t, value, "i32"), place * found.bits)
            word = b.op("or", "i32", word, wide)
        b.assign(target, B32, word)


def _store(b: Builder, ins: Instruction, found: _Tile) -> None:
    kind = SCALARS[found.kind]
    values = terms_of(b, _vector(ins, ins.operands[1], found), kind)
    for place, value in zip(_places(b, ins, ins.operands[0], found), values, strict=True):
        b.emit(f"store {kind.integer} {b.to_bits(value, kind)}, ptr {place}")


def _vector(ins: Instruction, operand: Operand, found: _Tile) -> list[Operand]:
    """Return the registers of a fragment; those of A and B in half may be more than are held."""
    items: list[Operand] = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != (8 if found.kind == "f16" and len(items) == 8 else found.held):
        raise InvalidPtx(f"{ins.text} needs {found.held} registers", ins.line)
    return items


def _multiply(b: Builder, ins: Instruction) -> None:
    types = [word for word in ins.opcode[1:] if word in SCALARS]
    m, n, k = _shape(ins)
    if len(types) == 2:  # of half, which is not named
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or types[1] != types[2] or types[0] not in _RESULTS.get(types[1], ()):
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    kind, result, term = types[1], SCALARS[types[0]], SCALARS[types[3]]
    satfinite = "satfinite" in ins.opcode
    if types[3] not in _RESULTS[kind] or (satfinite and result.is_float):
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    first, second = _tile(ins, "a", kind, "row"), _tile(ins, "b", kind, "col")
    unit = SCALARS[f"b{max(32, first.bits)}"]
    parts = [
        b.value(register, unit)
        for operand, found in zip(ins.operands[1:3], (first, second), strict=True)
        for register in _vector(ins, operand, found)[: found.held]
    ]
    shown = show(b, parts, unit)
    given, target = _tile(ins, "c", term.name, "row"), _tile(ins, "c", result.name, "row")
    terms = terms_of(b, registers(ins, ins.operands[3], given.held), term)
    if term != result:
        operation = "fpext" if result.bits == 32 else "fptrunc"
        terms = [b.cast(operation, term.llvm, value, result.llvm) for value in terms]
    product = Product(m, k, kind, kind, result, satfinite)

    def sums(place: str, names: list[str]) -> list[str]:
        return _sums(b, product, (first, second, target), place, names)

    name = f"wmma.n{n}.{product.name}"
    found = call_once(b, name, result, shown, terms, sums)
    give(b, registers(ins, ins.operands[0], target.held), found, result)


def _sums(
    b: Builder, product: Product, tiles: tuple[_Tile, _Tile, _Tile], shown: str, terms: list[str]
) -> list[str]:
    """Return the lane's elements of the result: all of one row."""
    first, second, target = tiles
    place = b.op("mul", "i32", own_lane(b), target.share)
    row = b.op("udiv", "i32", place, target.length)
    column = b.op("urem", "i32", place, target.length)
    left = _line(b, first, shown, row, 0)
    behind = first.held * max(32, first.bits) // 8
    sums = []
    for i, term in enumerate(terms):
        right = _line(b, second, shown, b.op("add", "i32", column, i), behind)
        sums.append(product_sum(b, product, left, right, term))
    return sums


def _line(b: Builder, found: _Tile, shown: str, line: str, start: int) -> list[str]:
    """Return a row of A or a column of B: a lane, or several in a row, have shown it."""
    lanes = b.op("mul", "i32", line, found.length // found.share)
    t, size = f"i{found.bits}", found.bits // 8
    numbers = []
    for k in range(found.length):
        lane = b.op("add", "i32", lanes, k // found.share)
        offset = b.op("mul", "i32", lane, MATRIX_BYTES)
        offset = b.op("add", "i32", offset, start + k % found.share * size)
        place = b.let(f"getelementptr i8, ptr {shown}, i32 {offset}")
        numbers.append(number_of(b, found.kind, b.let(f"load {t}, ptr {place}")))
    return numbers
