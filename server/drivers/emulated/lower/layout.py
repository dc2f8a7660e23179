"""Where a kernel's parameters, shared and local variables lie.

It depends on the PTX only, so function attributes are known without lowering.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.server.drivers.emulated.properties import SHARED_DEFAULT
from outlast.server.drivers.emulated.ptx.nodes import (
    Function,
    Instruction,
    Module,
    Symbol,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

#: Opcodes at which the threads of a warp or a block meet.
MEETING_OPCODES = frozenset(
    {"bar", "barrier", "shfl", "vote", "activemask", "redux", "match"}
    | {"ldmatrix", "movmatrix", "mma", "wmma"}
)

#: Functions of the device run time that calls may name without a body.
SYSTEM_CALLS = frozenset({"vprintf", "__assertfail"})

MAX_LOCAL = 512 << 10  # bytes a thread
MAX_CALL_DEPTH = 24
#: Registers and parameters of all inlined functions; bounds the frame of a suspended thread.
MAX_FRAME = 384 << 10  # bytes


def align_up(value: int, alignment: int) -> int:
    """Round ``value`` up to a multiple of ``alignment``."""
    return -(-value // alignment) * alignment


@dataclass(slots=True)
class Layout:
    """The static memory of one kernel."""

    parameters: dict[str, int] = field(default_factory=dict)
    parameter_size: int = 0
    #: Shared variable (`shared_key`) -> offset in the shared window.
    shared: dict[str, int] = field(default_factory=dict)
    shared_size: int = 0
    local_size: int = 0
    #: Threads meet, so each must be able to pause.
    meets: bool = False


def lay_out(module: Module, kernel: Function) -> Layout:
    """Lay out one kernel.

    Raises
    ------
    UnsupportedPtx
        It calls itself, calls what is not in the module, or needs too much local memory.
    """
    layout = Layout()
    for parameter in kernel.parameters:
        offset = align_up(layout.parameter_size, parameter.align)
        layout.parameters[parameter.name] = offset
        layout.parameter_size = offset + parameter.size
    functions, layout.local_size, frame = _walk(module, kernel)
    layout.meets = any(
        isinstance(step, Instruction) and step.opcode[0] in MEETING_OPCODES
        for function in functions
        for step in function.body or ()
    )
    _lay_out_shared(layout, module, functions)
    if layout.local_size > MAX_LOCAL or frame > MAX_FRAME:
        raise UnsupportedPtx(f"kernel {kernel.name} needs too much local memory")
    return layout


def _lay_out_shared(layout: Layout, module: Module, functions: list[Function]) -> None:
    candidates = [(v.name, v) for v in module.variables.values()]
    for function in functions:
        candidates += [(shared_key(function, n), v) for n, v in function.variables.items()]
    dynamic: list[str] = []
    for key, variable in candidates:
        if variable.space != "shared":
            continue
        if variable.extern or not variable.size:
            dynamic.append(key)
            continue
        offset = align_up(layout.shared_size, variable.align)
        layout.shared[key] = offset
        layout.shared_size = offset + variable.size
    layout.shared_size = align_up(layout.shared_size, 16)
    if layout.shared_size > SHARED_DEFAULT:
        raise InvalidPtx(f"{layout.shared_size} bytes of shared memory, {SHARED_DEFAULT} at most")
    for key in dynamic:
        layout.shared[key] = layout.shared_size


def shared_key(function: Function, name: str) -> str:
    """Return the key of a function's own shared variable; functions may share names."""
    return f"{function.name}/{name}"


def local_bytes(function: Function) -> int:
    """Return the local memory of one call of ``function``, without what it calls."""
    total = 0
    for variable in function.variables.values():
        if variable.space == "local":
            total = align_up(total, variable.align) + variable.size
    return align_up(total, 16)


def callee(module: Module, step: Instruction) -> Function | None:
    """Return the function that a call inlines; None for a system call."""
    call = step.call
    if call is None or not isinstance(call.target, Symbol):
        raise UnsupportedPtx("an indirect call", step.line)
    if call.target.name in SYSTEM_CALLS:
        return None
    function = module.functions.get(call.target.name)
    if function is None or function.body is None:
        raise UnsupportedPtx(f"a call of the external function {call.target.name}", step.line)
    return function


def _walk(module: Module, kernel: Function) -> tuple[list[Function], int, int]:
    """Return reachable functions, and local and frame bytes with every call inlined."""
    done: dict[str, tuple[int, int]] = {}
    order: list[Function] = [kernel]

    def visit(function: Function, depth: int, active: frozenset[str]) -> tuple[int, int]:
        if function.name in done:
            return done[function.name]
        local = local_bytes(function)
        frame = sum(16 for _ in function.registers)
        frame += sum(v.size for v in function.variables.values() if v.space == "param")
        for step in function.body or ():
            if not isinstance(step, Instruction) or step.opcode[0] != "call":
                continue
            inner = callee(module, step)
            if inner is None:
                continue
            if inner.name in active or depth >= MAX_CALL_DEPTH:
                raise UnsupportedPtx(f"recursion in {inner.name}", step.line)
            if inner not in order:
                order.append(inner)
            inner_local, inner_frame = visit(inner, depth + 1, active | {inner.name})
            local += inner_local
            frame += inner_frame
        done[function.name] = local, frame
        return local, frame

    local, frame = visit(kernel, 0, frozenset({kernel.name}))
    return order, local, frame
