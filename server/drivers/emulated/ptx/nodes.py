"""The nodes of a parsed PTX module, and its scalar types."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scalar:
    """A PTX scalar type such as ``.u32``."""

    name: str
    #: Bits of the value; a predicate has one.
    bits: int
    #: ``p`` predicate, ``b`` untyped, ``u`` unsigned, ``s`` signed, ``f`` float, ``v`` packed.
    kind: str

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return max(1, self.bits // 8)

    @property
    def signed(self) -> bool:
        """Whether widening extends the sign."""
        return self.kind == "s"

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on it is floating-point."""
        return self.kind == "f"

    @property
    def integer(self) -> str:
        """LLVM type that holds the bits."""
        return f"i{self.bits}"

    @property
    def llvm(self) -> str:
        """LLVM type to calculate in; bfloat16 is calculated in float."""
        if self.kind != "f":
            return self.integer
        return _LLVM_FLOATS[self.name]

    @property
    def suffix(self) -> str:
        """Suffix of LLVM's float intrinsics for `llvm`."""
        return "f32" if self.name == "bf16" else self.name

    @property
    def raw(self) -> Scalar:
        """The untyped scalar of the same width."""
        return self if self.kind == "p" else SCALARS[f"b{self.bits}"]

    @property
    def element(self) -> Scalar:
        """The type of a packed type's halves; other types are their own."""
        return SCALARS[self.name[:-2]] if self.kind == "v" else self


_LLVM_FLOATS = {"f16": "half", "bf16": "float", "f32": "float", "f64": "double"}

SCALARS: dict[str, Scalar] = {
    "pred": Scalar("pred", 1, "p"),
    **{f"{k}{n}": Scalar(f"{k}{n}", n, k) for k in "bus" for n in (8, 16, 32, 64)},
    "b128": Scalar("b128", 128, "b"),
    "f16": Scalar("f16", 16, "f"),
    "bf16": Scalar("bf16", 16, "f"),
    "f32": Scalar("f32", 32, "f"),
    "f64": Scalar("f64", 64, "f"),
    "f16x2": Scalar("f16x2", 32, "v"),
    "bf16x2": Scalar("bf16x2", 32, "v"),
    "tf32": Scalar("tf32", 32, "b"),
}


@dataclass(frozen=True, slots=True)
class Register:
    """A register of the function, or a special register."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal; a float literal holds its bits."""

    value: int
    #: ``f32`` or ``f64`` for a float literal.
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function or label, with a byte offset."""

    name: str
    offset: int = 0
    #: In an initial value: the part of the address that is meant, moved to the lowest bits.
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; no base means an absolute address."""

    base: Register | Symbol | None
    offset: int = 0
    #: Of ``base[index]``: the register, and the bytes of an element.
    index: Register | None = None
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: a second destination."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``."""

    operand: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Not


@dataclass(frozen=True, slots=True)
class Prototype:
    """What functions that are called through an address take and give."""

    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What a ``call`` names."""

    returns: tuple[Operand, ...]
    target: Operand
    arguments: tuple[Operand, ...]
    #: Of a call through a register: one of the two.
    prototype: Prototype | None = None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; the opcode is split at its dots."""

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: Register | None = None
    #: The guard is ``@!p``.
    negated: bool = False
    call: Call | None = None

    @property
    def text(self) -> str:
        """The opcode as written."""
        return ".".join(self.opcode)


@dataclass(frozen=True, slots=True)
class Label:
    """A place that a branch may name."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable or parameter."""

    name: str
    space: str
    scalar: Scalar
    align: int
    #: Bytes; 0 for an array without bounds.
    size: int
    initial: tuple[Immediate | Symbol, ...] = ()
    extern: bool = False


@dataclass(slots=True)
class Function:
    """A kernel (``.entry``) or a device function (``.func``)."""

    name: str
    is_entry: bool
    parameters: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: dict[str, Scalar] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    #: None for a declaration.
    body: list[Instruction | Label] | None = None
    #: Performance directives such as ``.maxntid``.
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: Label of a ``.branchtargets`` or ``.calltargets`` list -> its targets.
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A parsed PTX file."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    #: Functions whose addresses are taken; found out when a call needs it.
    taken: tuple[str, ...] | None = None
