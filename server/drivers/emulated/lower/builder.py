"""Writes the LLVM IR text of one kernel's thread.

Every PTX register is a stack slot (LLVM turns them into values); device functions are
inlined here, with a `Frame` each, so that a barrier inside a called function works.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from outlast.server.drivers.emulated.lower.callgraph import function_addresses
from outlast.server.drivers.emulated.lower.layout import Layout, align_up, shared_key
from outlast.server.drivers.emulated.lower.special import read_special
from outlast.server.drivers.emulated.ptx.nodes import (
    SCALARS,
    Address,
    Function,
    Immediate,
    Module,
    Not,
    Operand,
    Register,
    Scalar,
    Symbol,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx
from outlast.server.drivers.emulated.runtime import WORKER

PRED, B32, B64, U32 = (SCALARS[name] for name in ("pred", "b32", "b64", "u32"))


@dataclass(slots=True)
class Frame:
    """The kernel, an inlined call, or a function that stands."""

    function: Function
    #: Makes register and label names unique in the kernel.
    prefix: str
    #: Where ``ret`` goes.
    return_label: str
    #: Formal parameter -> pointer to the caller's variable, or to its own of what stands.
    bound: dict[str, str] = field(default_factory=dict)
    #: Local variable -> offset in the thread's local memory, or in the frame on its stack.
    local: dict[str, int] = field(default_factory=dict)
    #: Every label of the function.
    labels: set[str] = field(default_factory=set)
    #: Labels already passed: a branch to one is a loop's back edge.
    passed: set[str] = field(default_factory=set)

    def slot(self, name: str) -> str:
        """Return the IR name of a register or parameter variable."""
        return f'%"{self.prefix}{name}"'

    def label(self, name: str) -> str:
        """Return the IR name of a label."""
        return f'"{self.prefix}{name}"'


@dataclass(slots=True)
class Standing:
    """A function whose code exists once in the kernel."""

    frame: Frame
    number: int
    #: Bytes of its own local variables.
    local: int
    #: Labels after its calls; what it returns to is a number in this list.
    sites: list[str] = field(default_factory=list)


class Builder:
    """IR text under construction."""

    def __init__(self, module: Module, kernel: Function, layout: Layout) -> None:
        self.module = module
        self.kernel = kernel
        self.layout = layout
        self.slots: list[str] = []
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        #: Names of functions in `declarations` that take time to write.
        self.helpers: set[str] = set()
        #: The last line ends its block, so what follows needs a label.
        self.ended = False
        self.line = 0
        self._temporaries = 0
        self._calls = 0
        self._local = 0
        self._globals: dict[str, int] = {}
        #: Addresses of functions, as they are in the module.
        self.functions = function_addresses(module)
        #: The kernel, or a function that stands, and what is being inlined into it.
        self.frames: list[Frame] = []
        #: Functions that stand, by name, with the places that call them; `calls` fills it.
        self.standing: dict[str, Standing] = {}
        self.enter(kernel, "exit", {})

    # -- text ----------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Add one instruction without a result."""
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        """Add one instruction; return the name of its result."""
        self._temporaries += 1
        name = f"%.{self._temporaries}"
        self.lines.append(f"  {name} = {text}")
        return name

    def op(self, operation: str, kind: str, first: str, second: str | int) -> str:
        """Add a two-operand instruction."""
        return self.let(f"{operation} {kind} {first}, {second}")

    def cast(self, operation: str, source: str, value: str, target: str) -> str:
        """Add a conversion."""
        return self.let(f"{operation} {source} {value} to {target}")

    def select(self, condition: str, kind: str, first: str, second: str) -> str:
        """Add a choice between two values."""
        return self.let(f"select i1 {condition}, {kind} {first}, {kind} {second}")

    def intrinsic(self, result: str, name: str, *arguments: str) -> str:
        """Call an external function; arguments are written with their types."""
        kinds = ", ".join(argument.split(" ", 1)[0] for argument in arguments)
        self.declarations.add(f"declare {result} @{name}({kinds})")
        return self.let(f"call {result} @{name}({', '.join(arguments)})")

    def new_label(self) -> str:
        """Return a fresh label."""
        self._temporaries += 1
        return f"L.{self._temporaries}"

    def place(self, label: str) -> None:
        """Begin a block, falling through from the current one."""
        if not self.ended:
            self.emit(f"br label %{label}")
        self.lines.append(f"{label}:")
        self.ended = False

    def jump(self, label: str) -> None:
        """End the block with a branch."""
        self.emit(f"br label %{label}")
        self.ended = True

    def branch(self, condition: str, yes: str, no: str, weights: str = "") -> None:
        """End the block with a conditional branch."""
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}{weights}")
        self.ended = True

    def word(self, name: str) -> str:
        """Load a 64-bit word of the worker block."""
        return self.let(
            f"load i64, ptr {self.let(f'getelementptr i64, ptr %w, i64 {WORKER[name]}')}"
        )

    # -- frames --------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        """The function being lowered."""
        return self.frames[-1]

    def enter(self, function: Function, return_label: str, bound: dict[str, str]) -> Frame:
        """Begin an inlined call: give its variables a place."""
        self._calls += 1
        prefix = "" if self._calls == 1 else f"{self._calls}."
        frame = Frame(function, prefix, return_label, bound)
        for name, scalar in function.registers.items():
            # A register that nothing was written into is 0: LLVM may do anything with what is
            # undefined, and not only the program's results would be wrong.
            slot, kind = frame.slot(name), scalar.integer
            self.slots += [f"  {slot} = alloca {kind}", f"  store {kind} 0, ptr {slot}"]
        for variable in function.variables.values():
            if variable.space == "param":
                self._allocate(frame.slot(variable.name), max(variable.size, 1))
            elif variable.space == "local":
                offset = align_up(self._local, variable.align)
                frame.local[variable.name] = offset
                self._local = offset + variable.size
            elif variable.space != "shared":
                raise UnsupportedPtx(f"a .{variable.space} variable inside a function")
        self._local = align_up(self._local, 16)
        self.frames.append(frame)
        return frame

    def leave(self) -> None:
        """End an inlined call."""
        self.frames.pop()

    def temporary(self, size: int) -> str:
        """Return a pointer to ``size`` bytes of the thread."""
        self._temporaries += 1
        name = f"%.{self._temporaries}"
        self._allocate(name, size)
        return name

    def _allocate(self, name: str, size: int) -> None:
        """Give the thread ``size`` bytes of zeros."""
        self.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.slots += [
            f"  {name} = alloca [{size} x i8], align 16",
            f"  call void @llvm.memset.p0.i64(ptr {name}, i8 0, i64 {size}, i1 false)",
        ]

    def enter_standing(self, function: Function) -> Standing:
        """Return a function that stands; at first its variables get their places."""
        found = self.standing.get(function.name)
        if found is None:
            number = len(self.standing)
            frames, local = self.frames, self._local
            self.frames, self._local = [], 0
            frame = self.enter(function, f"return.{number}", {})
            found = self.standing[function.name] = Standing(frame, number, self._local)
            self.frames, self._local = frames, local
            for formal in (*function.parameters, *function.returns):
                if formal.space == "param":
                    frame.bound[formal.name] = self.temporary(max(formal.size, 16))
            slot = f"%return.to.{number}"
            self.slots += [f"  {slot} = alloca i32", f"  store i32 0, ptr {slot}"]
        return found

    def begin_standing(self, standing: Standing) -> None:
        """Go on with the code of a function that stands."""
        self.frames, self._local = [standing.frame], standing.local

    def end_standing(self, standing: Standing) -> None:
        """Note how much local memory the function and what is inlined into it have."""
        name = f"@frame_size.{standing.number}"
        self.declarations.add(f"{name} = internal constant i64 {align_up(self._local, 16)}")

    # -- operands ------------------------------------------------------------

    def register_type(self, name: str) -> Scalar:
        """Return the declared type of a register."""
        found = self.frame.function.registers.get(name)
        if found is None:
            raise InvalidPtx(f"unknown register {name}", self.line)
        return found

    def resize(self, value: str, have: int, want: int, signed: bool = False) -> str:
        """Cut or widen an integer."""
        if have == want:
            return value
        operation = "trunc" if have > want else "sext" if signed else "zext"
        return self.cast(operation, f"i{have}", value, f"i{want}")

    def value(self, operand: Operand, scalar: Scalar) -> str:
        """Return an operand as a value of ``scalar.llvm``."""
        if isinstance(operand, Immediate):
            return self._literal(operand, scalar)
        if isinstance(operand, Not):
            return self.op("xor", "i1", self.value(operand.operand, PRED), "true")
        if isinstance(operand, Register):
            return self.from_bits(self._read(operand, scalar), scalar)
        if isinstance(operand, Symbol):
            address = self.symbol_address(operand)
            return self.from_bits(self.resize(address, 64, scalar.bits), scalar)
        if isinstance(operand, Address):
            return self.from_bits(self.resize(self._address(operand), 64, scalar.bits), scalar)
        raise InvalidPtx(f"operand {operand} is no value", self.line)

    def _address(self, address: Address) -> str:
        """Return what ``[base + offset]`` or ``base[index]`` points at, as ``i64``."""
        if address.base is None:
            return str(address.offset)
        place = self.value(address.base, B64)
        if address.index is not None:
            index = self.value(address.index, B64)
            place = self.op("add", "i64", place, self.op("mul", "i64", index, address.scale))
        return self.op("add", "i64", place, address.offset) if address.offset else place

    def _read(self, register: Register, scalar: Scalar) -> str:
        if register.name in self.frame.function.registers:
            kind = self.register_type(register.name)
            value = self.let(f"load {kind.integer}, ptr {self.frame.slot(register.name)}")
            return self.resize(value, kind.bits, scalar.bits)
        value, bits = read_special(self, register.name)
        return self.resize(value, bits, scalar.bits)

    def _literal(self, literal: Immediate, scalar: Scalar) -> str:
        bits = literal.value
        if literal.format and scalar.is_float and scalar.name != literal.format:
            bits = convert_literal(literal, scalar)
        if scalar.bits == 1:
            return "true" if bits else "false"
        bits &= (1 << scalar.bits) - 1
        return self.from_bits(str(bits), scalar) if scalar.is_float else str(bits)

    def from_bits(self, bits: str, scalar: Scalar) -> str:
        """Reinterpret an integer as a value of ``scalar.llvm``."""
        if not scalar.is_float:
            return bits
        if scalar.name == "bf16":
            wide = self.cast("zext", "i16", bits, "i32")
            return self.cast("bitcast", "i32", self.op("shl", "i32", wide, 16), "float")
        return self.cast("bitcast", scalar.integer, bits, scalar.llvm)

    def to_bits(self, value: str, scalar: Scalar) -> str:
        """Reinterpret a value of ``scalar.llvm`` as an integer; bfloat16 is rounded."""
        if not scalar.is_float:
            return value
        if scalar.name == "bf16":
            return self._round_bf16(value)
        return self.cast("bitcast", scalar.llvm, value, scalar.integer)

    def _round_bf16(self, value: str) -> str:
        bits = self.cast("bitcast", "float", value, "i32")
        odd = self.op("and", "i32", self.op("lshr", "i32", bits, 16), 1)
        biased = self.op("add", "i32", self.op("add", "i32", bits, 0x7FFF), odd)
        rounded = self.op("lshr", "i32", biased, 16)
        nan = self.op("fcmp uno", "float", value, value)
        chosen = self.select(nan, "i32", str(0x7FFF), rounded)
        return self.cast("trunc", "i32", chosen, "i16")

    def assign(self, target: Operand, scalar: Scalar, value: str) -> None:
        """Store a value of ``scalar.llvm`` into a register; ``_`` drops it."""
        if isinstance(target, Symbol) and target.name == "_":
            return
        if not isinstance(target, Register):
            raise InvalidPtx(f"{target} is no destination", self.line)
        kind = self.register_type(target.name)
        bits = self.resize(self.to_bits(value, scalar), scalar.bits, kind.bits, scalar.signed)
        self.emit(f"store {kind.integer} {bits}, ptr {self.frame.slot(target.name)}")

    # -- symbols -------------------------------------------------------------

    @property
    def global_names(self) -> list[str]:
        """Module variables that the kernel uses, in the order of its address table."""
        return list(self._globals)

    def symbol_address(self, symbol: Symbol) -> str:
        """Return a variable's address in its own space, as ``i64``."""
        name, offset = symbol.name, symbol.offset
        if name in self.frame.local:
            place = str(self.frame.local[name] + offset)
            if self.frames[0].function is self.kernel:
                return place
            return self.op("add", "i64", self.let("load i64, ptr %stack"), place)
        shared = self.layout.shared.get(shared_key(self.frame.function, name))
        if shared is None:
            shared = self.layout.shared.get(name)
        if shared is not None:
            return str(shared + offset)
        variable = self.module.variables.get(name)
        if variable is not None and variable.space in ("global", "const"):
            return self._global_address(name, offset)
        if name in self.module.functions and self.module.functions[name].name in self.functions:
            return str(self.functions[self.module.functions[name].name])
        pointer = self.parameter_pointer(symbol)
        if len(self.frames) > 1 or name not in self.layout.parameters:
            raise UnsupportedPtx(f"the address of {name}", self.line)
        return self.cast("ptrtoint", "ptr", pointer, "i64")

    def _global_address(self, name: str, offset: int) -> str:
        index = self._globals.setdefault(name, len(self._globals))
        slot = self.let(f"getelementptr i64, ptr @global_addresses, i64 {index}")
        address = self.let(f"load i64, ptr {slot}, !invariant.load !1")
        return self.op("add", "i64", address, offset) if offset else address

    def parameter_pointer(self, symbol: Symbol, size: int = 0) -> str:
        """Return a pointer to a parameter, or to a variable in parameter space.

        Raises
        ------
        InvalidPtx
            There is none, or ``size`` bytes there reach beyond it.
        """
        name, offset, function = symbol.name, symbol.offset, self.frame.function
        is_kernel = len(self.frames) == 1 and function is self.kernel
        if name in self.frame.bound:
            pointer, start = self.frame.bound[name], 0
        elif is_kernel and name in self.layout.parameters:
            pointer, start = "%params", self.layout.parameters[name]
        elif name in function.variables and function.variables[name].space == "param":
            pointer, start = self.frame.slot(name), 0
        else:
            raise InvalidPtx(f"unknown symbol {name}", self.line)
        limit = self.extent(name)
        if not 0 <= offset <= offset + size <= limit:
            raise InvalidPtx(f"{name} has {limit} bytes", self.line)
        return self.let(f"getelementptr i8, ptr {pointer}, i64 {start + offset}")

    def extent(self, name: str) -> int:
        """Return the bytes of a parameter or a variable in parameter space."""
        function = self.frame.function
        variable = function.variables.get(name)
        if variable is not None:
            return variable.size
        return next(v.size for v in (*function.parameters, *function.returns) if v.name == name)


def convert_literal(literal: Immediate, scalar: Scalar) -> int:
    """Return the bits of a float literal in another format."""
    value: float
    if literal.format == "f64":
        value = struct.unpack("<d", struct.pack("<Q", literal.value))[0]
    else:
        value = struct.unpack("<f", struct.pack("<I", literal.value))[0]
    codes = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}
    if scalar.name not in codes:
        raise UnsupportedPtx(f"a float literal as .{scalar.name}")
    pack, unpack = codes[scalar.name]
    bits: int = struct.unpack(unpack, struct.pack(pack, value))[0]
    return bits
