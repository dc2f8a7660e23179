"""Random kernels and a plain interpreter of them, to compare the emulated device with.

A program works on four integers and three floats of each thread. Branches and loops diverge;
shuffles and votes name the lanes that are there, and the block meets at barriers where all of
its threads come by. The interpreter does one statement after another for all threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]
INTEGERS, FLOATS = 4, 3
WARP = 32


@dataclass(frozen=True)
class Integer:
    """``r[target] = operation(r[first], r[second])``."""

    operation: str
    target: int
    first: int
    second: int


@dataclass(frozen=True)
class Float:
    """``f[target] = operation(f[first], f[second])``."""

    operation: str
    target: int
    first: int
    second: int


@dataclass(frozen=True)
class Convert:
    """An integer becomes a float, or a float an integer."""

    operation: str
    target: int
    source: int


@dataclass(frozen=True)
class If:
    """A branch on a comparison of two integers, or of two floats."""

    condition: str
    first: int
    second: int
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Loop:
    """A loop that each thread does ``r[source] & 3`` times."""

    source: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Warp:
    """A warp operation of the lanes that are there."""

    operation: str
    target: int
    source: int
    constant: int


@dataclass(frozen=True)
class Exchange:
    """Every thread of the block reads the integer of another one, between two barriers."""

    target: int
    source: int
    distance: int


@dataclass(frozen=True)
class Count:
    """``bar.red``: how many threads of the block have an odd integer."""

    target: int
    source: int


Statement = Integer | Float | Convert | If | Loop | Warp | Exchange | Count
Program = tuple[Statement, ...]


# -- what operations do ------------------------------------------------------


def _signed(x: Array) -> Array:
    return x.view(np.int32)


def _wide(x: Array) -> Array:
    return x.astype(np.uint64)


def _divide(x: Array, y: Array) -> Array:
    return np.where(y == 0, np.uint32(0xFFFFFFFF), x // np.maximum(y, np.uint32(1)))


def _remainder(x: Array, y: Array) -> Array:
    return np.where(y == 0, np.uint32(0xFFFFFFFF), x % np.maximum(y, np.uint32(1)))


def _shift_left(x: Array, y: Array) -> Array:
    return (_wide(x) << np.minimum(_wide(y), np.uint64(32))).astype(np.uint32)


def _shift_right(x: Array, y: Array) -> Array:
    wide = _signed(x).astype(np.int64)
    return (wide >> np.minimum(_wide(y), np.uint64(32)).astype(np.int64)).astype(np.uint32)


def _bits(function: Callable[[int], int]) -> Callable[[Array, Array], Array]:
    return lambda x, _: np.array([function(v) for v in x.tolist()], np.uint32)


INTEGER_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add.u32": lambda x, y: x + y,
    "sub.u32": lambda x, y: x - y,
    "mul.lo.u32": lambda x, y: x * y,
    "mul.hi.u32": lambda x, y: (_wide(x) * _wide(y) >> np.uint64(32)).astype(np.uint32),
    "mul.hi.s32": lambda x, y: ((_signed(x).astype(np.int64) * _signed(y)) >> np.int64(32)).astype(
        np.uint32
    ),
    "div.u32": _divide,
    "rem.u32": _remainder,
    "and.b32": lambda x, y: x & y,
    "or.b32": lambda x, y: x | y,
    "xor.b32": lambda x, y: x ^ y,
    "shl.b32": _shift_left,
    "shr.s32": _shift_right,
    "min.u32": np.minimum,
    "max.s32": lambda x, y: np.maximum(_signed(x), _signed(y)).view(np.uint32),
    "popc.b32": _bits(int.bit_count),
    "clz.b32": _bits(lambda v: 32 - v.bit_length()),
    "brev.b32": _bits(lambda v: int(f"{v:032b}"[::-1], 2)),
    "not.b32": lambda x, _: ~x,
}
_UNARY = ("popc.b32", "clz.b32", "brev.b32", "not.b32")


def _smaller(x: Array, y: Array) -> Array:
    """Return the smaller number, as PTX has it: the other one of a NaN, and -0 before 0."""
    first = (x < y) | ((x == y) & np.signbit(x))
    return np.where(np.isnan(x), y, np.where(np.isnan(y) | first, x, y))


FLOAT_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add.rn.f32": lambda x, y: x + y,
    "sub.rn.f32": lambda x, y: x - y,
    "mul.rn.f32": lambda x, y: x * y,
    "div.rn.f32": lambda x, y: x / y,
    "min.f32": _smaller,
    "max.f32": lambda x, y: -_smaller(-x, -y),
    "neg.f32": lambda x, _: -x,
    "abs.f32": lambda x, _: np.abs(x),
    "sqrt.rn.f32": lambda x, _: np.sqrt(x),
}
_UNARY_FLOATS = ("neg.f32", "abs.f32", "sqrt.rn.f32")


def _truncate(x: Array) -> Array:
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0, posinf=1e10, neginf=-1e10)
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int64).astype(np.uint32)


CONVERSIONS: dict[str, Callable[[Array], Array]] = {
    "cvt.rn.f32.u32": lambda x: x.astype(np.float32),
    "cvt.rn.f32.s32": lambda x: _signed(x).astype(np.float32),
    "cvt.rzi.s32.f32": _truncate,
}
CONDITIONS: dict[str, Callable[[Array, Array], Array]] = {
    "lt.u32": np.less,
    "ge.s32": lambda x, y: _signed(x) >= _signed(y),
    "ne.u32": np.not_equal,
    "gt.f32": np.greater,
    "leu.f32": lambda x, y: ~(x > y),
}
WARP_OPERATIONS = (
    *("shfl.up", "shfl.down", "shfl.bfly", "shfl.idx"),
    *("redux.add", "redux.max", "vote.ballot", "match.any"),
)


# -- strategies --------------------------------------------------------------

_r, _f = st.integers(0, INTEGERS - 1), st.integers(0, FLOATS - 1)
_simple = st.one_of(
    st.builds(Integer, st.sampled_from(sorted(INTEGER_OPERATIONS)), _r, _r, _r),
    st.builds(Float, st.sampled_from(sorted(FLOAT_OPERATIONS)), _f, _f, _f),
    st.builds(Convert, st.sampled_from(sorted(CONVERSIONS)), st.integers(0, 2), st.integers(0, 2)),
    st.builds(Warp, st.sampled_from(WARP_OPERATIONS), _r, _r, st.integers(0, 31)),
)


def _nested(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    body = st.lists(inner, max_size=4).map(tuple)
    places = st.integers(0, FLOATS - 1)
    return st.one_of(
        st.builds(If, st.sampled_from(sorted(CONDITIONS)), places, places, body, body),
        st.builds(Loop, _r, body),
    )


_any: st.SearchStrategy[Statement] = st.recursive(_simple, _nested, max_leaves=10)
_meeting: st.SearchStrategy[Statement] = st.one_of(
    st.builds(Exchange, _r, _r, st.integers(1, 63)), st.builds(Count, _r, _r)
)
programs: st.SearchStrategy[Program] = st.lists(
    st.one_of(_any, _any, _meeting), min_size=3, max_size=14
).map(tuple)


# -- PTX ---------------------------------------------------------------------


class Writer:
    """Writes a program as a kernel ``run(words)``; each thread has seven words there."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._numbers = count(1)

    def text(self, program: Program) -> str:
        """Return the module."""
        self._lines = []
        words = [f"%r{i}" for i in range(INTEGERS)] + [f"%f{i}" for i in range(FLOATS)]
        loads = [f"ld.global.b32 {word}, [%d1+{4 * i}];" for i, word in enumerate(words)]
        for statement in program:
            self._write(statement, "%live0")
        masks = next(self._numbers)
        stores = [f"st.global.b32 [%d1+{4 * i}], {word};" for i, word in enumerate(words)]
        return "\n".join(
            [
                ".version 8.0\n.target sm_80\n.address_size 64",
                ".visible .entry run(.param .u64 words)\n{",
                f".reg .b32 %r<{INTEGERS}>; .reg .f32 %f<{FLOATS}>; .reg .b64 %d<3>;",
                f".reg .b32 %live<{masks}>; .reg .b32 %n<{masks}>; .reg .pred %p<{masks}>;",
                ".reg .b32 %t, %x, %y; .shared .align 4 .b8 cells[1024];",
                "ld.param.u64 %d1, [words]; mov.u32 %t, %tid.x; mov.u32 %x, %ntid.x;",
                "mul.wide.u32 %d2, %t, 28; add.u64 %d1, %d1, %d2;",
                *loads,
                # The lanes of the warp that exist: of the last one maybe not all.
                "and.b32 %y, %t, 992; sub.u32 %y, %x, %y; min.u32 %y, %y, 32;",
                "bmsk.clamp.b32 %live0, 0, %y;",
                *self._lines,
                *stores,
                "ret;\n}",
            ]
        )

    def _add(self, *lines: str) -> None:
        self._lines += lines

    def _write(self, s: Statement, live: str) -> None:
        if isinstance(s, Integer):
            second = "" if s.operation in _UNARY else f", %r{s.second}"
            self._add(f"{s.operation} %r{s.target}, %r{s.first}{second};")
        elif isinstance(s, Float):
            second = "" if s.operation in _UNARY_FLOATS else f", %f{s.second}"
            self._add(f"{s.operation} %f{s.target}, %f{s.first}{second};")
        elif isinstance(s, Convert):
            to, of = ("r", "f") if s.operation.endswith("s32.f32") else ("f", "r")
            self._add(f"{s.operation} %{to}{s.target}, %{of}{s.source};")
        elif isinstance(s, Warp):
            self._add(self._warp(s, live))
        elif isinstance(s, Exchange):
            self._add(
                "shl.b32 %y, %t, 2; mov.u32 %x, cells; add.u32 %y, %y, %x;",
                f"st.shared.u32 [%y], %r{s.source}; bar.sync 0;",
                f"mov.u32 %x, %ntid.x; add.u32 %y, %t, {s.distance}; rem.u32 %y, %y, %x;",
                "shl.b32 %y, %y, 2; mov.u32 %x, cells; add.u32 %y, %y, %x;",
                f"ld.shared.u32 %r{s.target}, [%y]; bar.sync 0;",
            )
        elif isinstance(s, Count):
            n = next(self._numbers)
            self._add(
                f"and.b32 %y, %r{s.source}, 1; setp.ne.u32 %p{n}, %y, 0;",
                f"bar.red.popc.u32 %r{s.target}, 1, %p{n};",
            )
        elif isinstance(s, If):
            self._if(s, live)
        else:
            self._loop(s, live)

    def _warp(self, s: Warp, live: str) -> str:
        kind, name = s.operation.split(".")
        target, source = f"%r{s.target}", f"%r{s.source}"
        if kind == "shfl":
            return self._shuffle(name, target, source, s.constant, live)
        if kind == "redux":
            return f"redux.sync.{name}.u32 {target}, {source}, {live};"
        if kind == "match":
            return f"and.b32 %y, {source}, 3; match.any.sync.b32 {target}, %y, {live};"
        n = next(self._numbers)
        return (
            f"setp.gt.u32 %p{n}, {source}, {s.constant};"
            f" vote.sync.ballot.b32 {target}, %p{n}, {live};"
        )

    def _shuffle(self, name: str, target: str, source: str, constant: int, live: str) -> str:
        """Shuffle; a lane that is not there leaves the thread its own value."""
        n, end = next(self._numbers), 0 if name == "up" else 31
        place = {"up": "sub.u32", "down": "add.u32", "bfly": "xor.b32"}.get(name)
        other = f"{place} %x, %x, {constant};" if place else f"mov.u32 %x, {constant};"
        return (
            f"mov.u32 %x, %laneid; {other} shr.u32 %y, {live}, %x; and.b32 %y, %y, 1;"
            f" setp.ne.u32 %p{n}, %y, 0;"
            f" shfl.sync.{name}.b32 %y, {source}, {constant}, {end}, {live};"
            f" selp.b32 {target}, %y, {source}, %p{n};"
        )

    def _if(self, s: If, live: str) -> None:
        n, letter = next(self._numbers), "f" if s.condition.endswith("f32") else "r"
        # Each side knows its lanes, for the warp operations in it.
        self._add(
            f"setp.{s.condition} %p{n}, %{letter}{s.first}, %{letter}{s.second};",
            f"vote.sync.ballot.b32 %live{n}, %p{n}, {live};",
            f"@!%p{n} xor.b32 %live{n}, %live{n}, {live};",
            f"@!%p{n} bra ELSE{n};",
        )
        for inner in s.then:
            self._write(inner, f"%live{n}")
        self._add(f"bra END{n};", f"ELSE{n}:")
        for inner in s.otherwise:
            self._write(inner, f"%live{n}")
        self._add(f"END{n}:")

    def _loop(self, s: Loop, live: str) -> None:
        n = next(self._numbers)
        self._add(
            f"and.b32 %n{n}, %r{s.source}, 3; mov.b32 %live{n}, {live};",
            f"LOOP{n}:",
            f"setp.ne.u32 %p{n}, %n{n}, 0;",
            # Those that leave do not come back: the others have one lane less to wait for.
            f"vote.sync.ballot.b32 %live{n}, %p{n}, %live{n};",
            f"@!%p{n} bra DONE{n};",
            f"sub.u32 %n{n}, %n{n}, 1;",
        )
        for inner in s.body:
            self._write(inner, f"%live{n}")
        self._add(f"bra LOOP{n};", f"DONE{n}:")


# -- the interpreter ---------------------------------------------------------


class Interpreter:
    """Runs a program on the registers of all threads of a block."""

    def __init__(self, integers: Array, floats: Array) -> None:
        self.r, self.f = integers.copy(), floats.copy()
        self.threads = integers.shape[1]

    def run(self, program: Program) -> None:
        """Run the whole program."""
        with np.errstate(all="ignore"):
            for statement in program:
                self._run(statement, np.ones(self.threads, bool))

    def _run(self, s: Statement, live: Array) -> None:
        if isinstance(s, Integer):
            self._set(
                s.target, INTEGER_OPERATIONS[s.operation](self.r[s.first], self.r[s.second]), live
            )
        elif isinstance(s, Float):
            value = FLOAT_OPERATIONS[s.operation](self.f[s.first], self.f[s.second])
            self.f[s.target] = np.where(live, value, self.f[s.target])
        elif isinstance(s, Convert):
            if s.operation.endswith("s32.f32"):
                self._set(s.target, CONVERSIONS[s.operation](self.f[s.source]), live)
            else:
                value = CONVERSIONS[s.operation](self.r[s.source])
                self.f[s.target] = np.where(live, value, self.f[s.target])
        elif isinstance(s, Warp):
            self._warp(s, live)
        elif isinstance(s, Exchange):
            places = (np.arange(self.threads) + s.distance) % self.threads
            self._set(s.target, self.r[s.source][places], live)
        elif isinstance(s, Count):
            total = int((self.r[s.source] & np.uint32(1)).sum())
            self._set(s.target, np.full(self.threads, total, np.uint32), live)
        elif isinstance(s, If):
            registers = self.f if s.condition.endswith("f32") else self.r
            chosen = CONDITIONS[s.condition](registers[s.first], registers[s.second])
            for side, body in ((live & chosen, s.then), (live & ~chosen, s.otherwise)):
                for inner in body:
                    self._run(inner, side)
        else:
            left = self.r[s.source] & np.uint32(3)
            for turn in range(3):
                for inner in s.body:
                    self._run(inner, live & (left > turn))

    def _set(self, target: int, value: Array, live: Array) -> None:
        self.r[target] = np.where(live, value, self.r[target])

    def _warp(self, s: Warp, live: Array) -> None:
        source, result = self.r[s.source].copy(), self.r[s.target].copy()
        for start in range(0, self.threads, WARP):
            lanes = [t for t in range(start, min(start + WARP, self.threads)) if live[t]]
            for t in lanes:
                result[t] = self._one_lane(s, source, start, t, lanes)
        self.r[s.target] = result

    def _one_lane(self, s: Warp, source: Array, start: int, t: int, lanes: list[int]) -> int:
        kind, name = s.operation.split(".")
        values = [int(source[lane]) for lane in lanes]
        if kind == "redux":
            return sum(values) & 0xFFFFFFFF if name == "add" else max(values)
        if kind == "vote":
            return sum(1 << (lane - start) for lane in lanes if source[lane] > s.constant)
        if kind == "match":
            own = source[t] & np.uint32(3)
            return sum(1 << (lane - start) for lane in lanes if source[lane] & np.uint32(3) == own)
        lane = t - start
        moves = {"up": lane - s.constant, "down": lane + s.constant, "bfly": lane ^ s.constant}
        other = moves.get(name, s.constant)
        return int(source[start + other if start + other in lanes and other < WARP else t])
