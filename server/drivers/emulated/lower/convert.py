"""``cvt``: conversions between all scalar types."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.floating import (
    float_call,
    round_directed,
    saturate,
    small_from_double,
)
from outlast.server.drivers.emulated.lower.registry import lowers, scalar
from outlast.server.drivers.emulated.ptx.nodes import Instruction, Scalar
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTED = ("rz", "rm", "rp")
_WIDTHS = {"half": 16, "float": 32, "double": 64}


@lowers("cvt", operands=2, words="rn rz rm rp rni rzi rmi rpi ftz sat")
def convert(b: Builder, ins: Instruction) -> None:
    """Lower ``cvt``."""
    target, source = scalar(ins, -2), scalar(ins)
    if target.kind == "p" or source.kind == "p":
        raise InvalidPtx(f"{ins.text} of a predicate", ins.line)
    value = b.value(ins.operands[1], source)
    if source.is_float and target.is_float:
        result = _between_floats(b, ins, value, source, target)
    elif source.is_float:
        result = _float_to_integer(b, ins, value, source, target)
    elif target.is_float:
        result = _integer_to_float(b, ins, value, source, target)
    elif "sat" in ins.opcode:
        result = _saturating(b, value, source, target)
    else:
        result = b.resize(value, source.bits, target.bits, source.signed)
    b.assign(ins.operands[0], target, result)


def _to_integer_value(b: Builder, ins: Instruction, value: str, kind: Scalar) -> str:
    """Round to an integral number if the opcode has an integer rounding."""
    for mode, function in _TO_INTEGER.items():
        if mode in ins.opcode:
            return float_call(b, kind, function, value)
    return value


def _between_floats(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    value = _to_integer_value(b, ins, value, source)
    have, want = _WIDTHS[source.llvm], _WIDTHS[target.llvm]
    mode = next((m for m in _DIRECTED if m in ins.opcode), "")
    if mode and have > want:
        if (source.name, target.name) != ("f64", "f32"):
            raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
        value = round_directed(b, value, mode)
    elif mode and target.name == "bf16":
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    elif have < want:
        value = b.cast("fpext", source.llvm, value, target.llvm)
    elif have == 64 and target.bits == 16:
        value = small_from_double(b, value, target)
    elif have > want:
        value = b.cast("fptrunc", source.llvm, value, target.llvm)
    return saturate(b, ins, target, value)


def _float_to_integer(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    number = _to_integer_value(b, ins, value, source)
    name = "fptosi" if target.signed else "fptoui"
    function = f"llvm.{name}.sat.{target.integer}.{source.suffix}"
    result = b.intrinsic(target.integer, function, f"{source.llvm} {number}")
    if source.bits < 64 and target.bits < 64:
        return result  # NaN gives 0
    nan = b.op("fcmp uno", source.llvm, value, value)
    return b.select(nan, target.integer, str(1 << (target.bits - 1)), result)


def _integer_to_float(
    b: Builder, ins: Instruction, value: str, source: Scalar, target: Scalar
) -> str:
    operation = "sitofp" if source.signed else "uitofp"
    mode = next((m for m in _DIRECTED if m in ins.opcode), "")
    if not mode:
        result = b.cast(operation, source.integer, value, target.llvm)
    elif target.name == "f32" and source.bits <= 32:
        result = round_directed(b, b.cast(operation, source.integer, value, "double"), mode)
    elif target.name == "f64" and source.bits <= 32:
        result = b.cast(operation, source.integer, value, "double")  # exact
    else:
        raise UnsupportedPtx(f"instruction {ins.text}", ins.line)
    return saturate(b, ins, target, result)


def _saturating(b: Builder, value: str, source: Scalar, target: Scalar) -> str:
    """Clamp an integer to the range of another type, in 128 bits."""
    wide = b.resize(value, source.bits, 128, source.signed)
    low = -(1 << (target.bits - 1)) if target.signed else 0
    high = (1 << (target.bits - target.signed)) - 1
    wide = b.intrinsic("i128", "llvm.smax.i128", f"i128 {wide}", f"i128 {low}")
    wide = b.intrinsic("i128", "llvm.smin.i128", f"i128 {wide}", f"i128 {high}")
    return b.resize(wide, 128, target.bits)
