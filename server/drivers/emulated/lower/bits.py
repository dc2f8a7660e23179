"""Logic, shifts and bit fields."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B32, U32, Builder
from outlast.server.drivers.emulated.lower.registry import BITS, INTEGERS, lowers, scalar, word
from outlast.server.drivers.emulated.ptx.nodes import Immediate, Instruction
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx


@lowers("and", "or", "xor", operands=3, types=f"pred {BITS}")
def logic(b: Builder, ins: Instruction) -> None:
    """Lower two-operand logic."""
    kind = scalar(ins).raw
    x, y = (b.value(ins.operands[i], kind) for i in (1, 2))
    b.assign(ins.operands[0], kind, b.op(ins.opcode[0], kind.integer, x, y))


@lowers("not", operands=2, types=f"pred {BITS}")
def invert(b: Builder, ins: Instruction) -> None:
    """Lower ``not``."""
    kind = scalar(ins).raw
    value = b.value(ins.operands[1], kind)
    b.assign(
        ins.operands[0], kind, b.op("xor", kind.integer, value, -1 if kind.bits > 1 else "true")
    )


@lowers("cnot", operands=2, types=BITS)
def logical_not(b: Builder, ins: Instruction) -> None:
    """Lower ``cnot``: 1 for zero, else 0."""
    kind = scalar(ins).raw
    zero = b.op("icmp eq", kind.integer, b.value(ins.operands[1], kind), 0)
    b.assign(ins.operands[0], kind, b.cast("zext", "i1", zero, kind.integer))


@lowers("shl", "shr", operands=3, types=f"{BITS} {INTEGERS}")
def shift(b: Builder, ins: Instruction) -> None:
    """Lower shifts; amounts of the width and more give zero or the sign."""
    kind, t = scalar(ins), scalar(ins).integer
    value, amount = b.value(ins.operands[1], kind), b.value(ins.operands[2], U32)
    operation = "shl" if ins.opcode[0] == "shl" else "ashr" if kind.signed else "lshr"
    large = b.op("icmp uge", "i32", amount, kind.bits)
    clamped = b.select(large, "i32", str(kind.bits - 1), amount)
    result = b.op(operation, t, value, b.resize(clamped, 32, kind.bits))
    if operation != "ashr":
        result = b.select(large, t, "0", result)
    b.assign(ins.operands[0], kind, result)


@lowers("shf", operands=4, words="l r clamp wrap", types="b32")
def funnel_shift(b: Builder, ins: Instruction) -> None:
    """Lower ``shf``: shift a pair of registers."""
    low, high, amount = (b.value(ins.operands[i], U32) for i in (1, 2, 3))
    left = "l" in ins.opcode
    function = "llvm.fshl.i32" if left else "llvm.fshr.i32"
    result = b.intrinsic("i32", function, f"i32 {high}", f"i32 {low}", f"i32 {amount}")
    if "clamp" in ins.opcode:
        large = b.op("icmp uge", "i32", amount, 32)
        result = b.select(large, "i32", low if left else high, result)
    b.assign(ins.operands[0], B32, result)


@lowers("lop3", operands=5, types="b32")
def ternary_logic(b: Builder, ins: Instruction) -> None:
    """Lower ``lop3``: a truth table over three operands."""
    table = ins.operands[4]
    if not isinstance(table, Immediate):
        raise InvalidPtx("lop3 needs a constant table", ins.line)
    values = [b.value(ins.operands[i], B32) for i in (1, 2, 3)]
    inverted = [b.op("xor", "i32", value, -1) for value in values]
    result = "0"
    for row in range(8):
        if table.value >> row & 1:
            x, y, z = ((values if row >> (2 - i) & 1 else inverted)[i] for i in range(3))
            term = b.op("and", "i32", b.op("and", "i32", x, y), z)
            result = b.op("or", "i32", result, term)
    b.assign(ins.operands[0], B32, result)


#: Mode of ``prmt`` -> the bytes that it picks, for each value of the lowest two bits.
_PICKS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@lowers("prmt", operands=4, words=" ".join(_PICKS), types="b32")
def permute(b: Builder, ins: Instruction) -> None:
    """Lower ``prmt``: pick four bytes out of eight."""
    low, high, control = (b.value(ins.operands[i], B32) for i in (1, 2, 3))
    mode = next((name for name in _PICKS if name in ins.opcode), "")
    if mode:
        control = _chosen(b, _PICKS[mode], control)
    upper = b.op("shl", "i64", b.cast("zext", "i32", high, "i64"), 32)
    pool = b.op("or", "i64", upper, b.cast("zext", "i32", low, "i64"))
    result = "0"
    for byte in range(4):
        nibble = b.op("lshr", "i32", control, 4 * byte)
        index = b.op("shl", "i32", b.op("and", "i32", nibble, 7), 3)
        picked = b.cast(
            "trunc", "i64", b.op("lshr", "i64", pool, b.cast("zext", "i32", index, "i64")), "i8"
        )
        sign = b.op("icmp ne", "i32", b.op("and", "i32", nibble, 8), 0)
        picked = b.select(sign, "i8", b.op("ashr", "i8", picked, 7), picked)
        placed = b.op("shl", "i32", b.cast("zext", "i8", picked, "i32"), 8 * byte)
        result = b.op("or", "i32", result, placed)
    b.assign(ins.operands[0], B32, result)


def _chosen(b: Builder, picks: tuple[int, ...], control: str) -> str:
    low = b.op("and", "i32", control, 3)
    found = str(picks[0])
    for number, pick in enumerate(picks[1:], 1):
        here = b.op("icmp eq", "i32", low, number)
        found = b.select(here, "i32", str(pick), found)
    return found


@lowers("popc", "clz", operands=2, types="b32 b64")
def count_bits(b: Builder, ins: Instruction) -> None:
    """Lower ``popc`` and ``clz``."""
    kind = scalar(ins)
    t = kind.integer
    arguments = [f"{t} {b.value(ins.operands[1], kind)}"]
    function = "ctpop"
    if ins.opcode[0] == "clz":
        function = "ctlz"
        arguments.append("i1 false")
    count = b.intrinsic(t, f"llvm.{function}.{t}", *arguments)
    b.assign(ins.operands[0], U32, b.resize(count, kind.bits, 32))


@lowers("brev", operands=2, types="b32 b64")
def reverse(b: Builder, ins: Instruction) -> None:
    """Lower ``brev``."""
    kind = scalar(ins)
    t = kind.integer
    value = f"{t} {b.value(ins.operands[1], kind)}"
    b.assign(ins.operands[0], kind, b.intrinsic(t, f"llvm.bitreverse.{t}", value))


@lowers("bfind", operands=2, words="shiftamt", types="u32 u64 s32 s64")
def find_leading(b: Builder, ins: Instruction) -> None:
    """Lower ``bfind``: the highest bit that differs from the sign; -1 if none."""
    kind = scalar(ins)
    t, bits = kind.integer, kind.bits
    value = b.value(ins.operands[1], kind)
    if kind.signed:
        value = b.op("xor", t, value, b.op("ashr", t, value, bits - 1))
    zeros = b.intrinsic(t, f"llvm.ctlz.{t}", f"{t} {value}", "i1 false")
    found = zeros if "shiftamt" in ins.opcode else b.op("sub", t, str(bits - 1), zeros)
    found = b.resize(found, bits, 32)
    none = b.op("icmp eq", t, value, 0)
    b.assign(ins.operands[0], U32, b.select(none, "i32", "-1", found))


def _field_operand(b: Builder, ins: Instruction, index: int, limit: int) -> str:
    """Return a bit position or length, at most ``limit``.

    For words of 32 bits only the low byte counts; the hardware takes all of it for 64 bits.
    """
    value = b.value(ins.operands[index], U32)
    wide = b.resize(value if limit == 64 else b.op("and", "i32", value, 255), 32, 64)
    return b.intrinsic("i64", "llvm.umin.i64", f"i64 {wide}", f"i64 {limit}")


def _mask(b: Builder, bits: str) -> str:
    """Return ``(1 << bits) - 1`` for up to 64 bits."""
    low = b.op("shl", "i64", "1", b.op("and", "i64", bits, 63))
    return b.select(b.op("icmp uge", "i64", bits, 64), "i64", "-1", b.op("sub", "i64", low, 1))


@lowers("bfi", operands=5, types="b32 b64")
def insert_field(b: Builder, ins: Instruction) -> None:
    """Lower ``bfi``: put a bit field into a word."""
    kind = scalar(ins)
    source, word = (b.resize(b.value(ins.operands[i], kind), kind.bits, 64) for i in (1, 2))
    start, length = (_field_operand(b, ins, i, kind.bits) for i in (3, 4))
    end = b.intrinsic(
        "i64", "llvm.umin.i64", f"i64 {b.op('add', 'i64', start, length)}", f"i64 {kind.bits}"
    )
    mask = b.op("and", "i64", _mask(b, end), b.op("xor", "i64", _mask(b, start), -1))
    placed = b.op("shl", "i64", source, b.op("and", "i64", start, 63))
    kept = b.op("and", "i64", word, b.op("xor", "i64", mask, -1))
    result = b.op("or", "i64", b.op("and", "i64", placed, mask), kept)
    b.assign(ins.operands[0], kind, b.resize(result, 64, kind.bits))


@lowers("bfe", operands=4, types="u32 u64 s32 s64")
def extract_field(b: Builder, ins: Instruction) -> None:
    """Lower ``bfe``: take a bit field out of a word, with its sign.

    In 128 bits no shift amount overflows, and bits above the word are its sign.
    """
    kind = scalar(ins)
    value = b.resize(b.value(ins.operands[1], kind), kind.bits, 128, kind.signed)
    start, length = (b.resize(_field_operand(b, ins, i, kind.bits), 64, 128) for i in (2, 3))
    operation = "ashr" if kind.signed else "lshr"
    shifted = b.op(operation, "i128", value, start)
    empty = b.op("icmp eq", "i128", length, 0)
    unused = b.select(empty, "i128", "0", b.op("sub", "i128", "128", length))
    field = b.op(operation, "i128", b.op("shl", "i128", shifted, unused), unused)
    field = b.select(empty, "i128", "0", field)
    b.assign(ins.operands[0], kind, b.resize(field, 128, kind.bits))


@lowers("bmsk", operands=3, words="clamp wrap", types="b32")
def make_mask(b: Builder, ins: Instruction) -> None:
    """Lower ``bmsk``: ones from a bit on."""
    start, length = (b.value(ins.operands[i], U32) for i in (1, 2))
    if word(ins, "clamp", "wrap") == "wrap":
        start, length = (b.op("and", "i32", value, 31) for value in (start, length))
    ones = b.op("sub", "i64", _power(b, length), 1)
    mask = b.op("shl", "i64", ones, b.resize(b.op("and", "i32", start, 31), 32, 64))
    mask = b.select(b.op("icmp uge", "i32", start, 32), "i64", "0", mask)
    b.assign(ins.operands[0], B32, b.cast("trunc", "i64", mask, "i32"))


def _power(b: Builder, exponent: str) -> str:
    """Return two to a power of at most 32, in 64 bits."""
    limited = b.intrinsic("i32", "llvm.umin.i32", f"i32 {exponent}", "i32 32")
    return b.op("shl", "i64", "1", b.resize(limited, 32, 64))


@lowers("szext", operands=3, words="clamp wrap", types="u32 s32")
def extend_from_bit(b: Builder, ins: Instruction) -> None:
    """Lower ``szext``: keep the low bits, and extend their sign or zeros."""
    kind = scalar(ins)
    value, length = b.value(ins.operands[1], kind), b.value(ins.operands[2], U32)
    if word(ins, "clamp", "wrap") == "wrap":
        length = b.op("and", "i32", length, 31)
    limited = b.intrinsic("i32", "llvm.umin.i32", f"i32 {length}", "i32 32")
    unused = b.resize(b.op("sub", "i32", "64", limited), 32, 64)
    empty = b.op("icmp eq", "i32", limited, 0)
    unused = b.select(empty, "i64", "0", unused)
    wide = b.op("shl", "i64", b.resize(value, 32, 64), unused)
    result = b.op("ashr" if kind.signed else "lshr", "i64", wide, unused)
    result = b.select(empty, "i64", "0", result)
    b.assign(ins.operands[0], B32, b.cast("trunc", "i64", result, "i32"))


_NTH_SET = """
define internal i32 @nth_set(i32 %mask, i32 %base, i32 %offset) noinline {
entry:
  %up = icmp sge i32 %offset, 0
  %step = select i1 %up, i32 1, i32 -1
  %magnitude = call i32 @llvm.abs.i32(i32 %offset, i1 false)
  %none = icmp eq i32 %offset, 0
  %wanted = select i1 %none, i32 1, i32 %magnitude
  br label %look
look:
  %bit = phi i32 [%base, %entry], [%next, %move]
  %left = phi i32 [%wanted, %entry], [%left.next, %move]
  %inside = icmp ult i32 %bit, 32
  br i1 %inside, label %test, label %nothing
test:
  %shifted = lshr i32 %mask, %bit
  %set = and i32 %shifted, 1
  %left.next = sub i32 %left, %set
  %found = icmp eq i32 %left.next, 0
  br i1 %found, label %done, label %again
again:
  br i1 %none, label %nothing, label %move
move:
  %next = add i32 %bit, %step
  br label %look
done:
  ret i32 %bit
nothing:
  ret i32 -1
}
"""


@lowers("fns", operands=4, types="b32")
def find_nth_set(b: Builder, ins: Instruction) -> None:
    """Lower ``fns``: the n-th set bit from a bit on, upwards or downwards."""
    mask, base, offset = (b.value(ins.operands[i], U32) for i in (1, 2, 3))
    b.declarations |= {"declare i32 @llvm.abs.i32(i32, i1)", _NTH_SET}
    found = b.let(f"call i32 @nth_set(i32 {mask}, i32 {base}, i32 {offset})")
    b.assign(ins.operands[0], B32, found)
