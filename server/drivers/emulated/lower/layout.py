"""Where a kernel's parameters, shared and local variables lie.

It depends on the PTX only, so function attributes are known without lowering.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.server.drivers.emulated.lower.callgraph import callees, calls, reach
from outlast.server.drivers.emulated.properties import SHARED_DEFAULT
from outlast.server.drivers.emulated.ptx.nodes import (
    Function,
    Instruction,
    Module,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

#: Opcodes at which the threads of a warp or a block meet.
MEETING_OPCODES = frozenset(
    {"bar", "barrier", "shfl", "vote", "activemask", "redux", "match"}
    | {"ldmatrix", "movmatrix", "mma", "wmma"}
)

MAX_LOCAL = 512 << 10  # bytes a thread
#: Bytes a thread has for calls of functions that are not inlined.
STACK = 64 << 10
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
    #: Bytes of local memory: the variables of the kernel with all that is inlined.
    local_size: int = 0
    #: Bytes behind them for the calls of functions that stand.
    stack_size: int = 0
    #: Names of those functions.
    standing: frozenset[str] = frozenset()
    #: Threads meet, so each must be able to pause.
    meets: bool = False

    @property
    def thread_local(self) -> int:
        """Bytes of local memory that a thread has."""
        return self.local_size + self.stack_size


def lay_out(module: Module, kernel: Function) -> Layout:
    """Lay out one kernel.

    Raises
    ------
    UnsupportedPtx
        It calls what is not in the module, or needs too much local memory.
    """
    layout = Layout()
    for parameter in kernel.parameters:
        offset = align_up(layout.parameter_size, parameter.align)
        layout.parameters[parameter.name] = offset
        layout.parameter_size = offset + parameter.size
    reached = reach(module, kernel)
    functions, layout.standing = reached.functions, reached.standing
    sizes = _Sizes(module, layout.standing)
    layout.local_size, frame = sizes.of(kernel)
    frame += sum(sizes.of(f)[1] for f in functions if f.name in layout.standing)
    layout.stack_size = STACK if layout.standing else 0
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
    total, largest = 0, 16
    for variable in function.variables.values():
        if variable.space == "local":
            total = align_up(total, variable.align) + variable.size
            largest = max(largest, variable.align)
    # Where it begins is a multiple of 16, so a larger alignment may waste what it is larger by.
    return align_up(total, 16) + largest - 16


class _Sizes:
    """Local memory and frames of functions, with what is inlined into them."""

    def __init__(self, module: Module, standing: frozenset[str]) -> None:
        self._module = module
        self._standing = standing
        self._known: dict[str, tuple[int, int]] = {}

    def of(self, function: Function) -> tuple[int, int]:
        """Return the bytes of local memory, and of registers and parameters."""
        if function.name not in self._known:
            local, frame = local_bytes(function), 16 * len(function.registers)
            frame += sum(v.size for v in function.variables.values() if v.space == "param")
            frame += sum(v.size for v in (*function.parameters, *function.returns))
            for step in calls(function):
                for target in callees(self._module, step):
                    if target.name in self._standing:
                        # Its arguments and results are copied at each call.
                        parameters = (*target.parameters, *target.returns)
                        frame += sum(max(v.size, 16) for v in parameters)
                    else:
                        inner_local, inner_frame = self.of(target)
                        local += inner_local
                        frame += inner_frame
            self._known[function.name] = local, frame
        return self._known[function.name]
