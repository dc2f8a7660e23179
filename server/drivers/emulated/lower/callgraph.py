"""Which functions a kernel reaches, and which of them cannot be inlined.

A function *stands* if its code exists once in a kernel, with a stack: because it may call itself,
because calls through addresses may reach it, or because copies of it would be too many.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from outlast.server.drivers.emulated.ptx.nodes import (
    Call,
    Function,
    Instruction,
    Module,
    Prototype,
    Symbol,
    Variable,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

#: Functions of the device run time that calls may name without a body.
SYSTEM_CALLS = frozenset({"vprintf", "__assertfail"})

MAX_CALL_DEPTH = 24
#: Instructions of a function, with what is inlined into it, that are copied more than once.
MAX_COPIED = 4000
#: Where addresses of functions begin; no memory of any device lies there.
_CODE = 0x7000_0000_0000


@dataclass(slots=True)
class Reach:
    """What a kernel reaches."""

    #: The kernel first.
    functions: list[Function] = field(default_factory=list)
    #: Names of those that stand.
    standing: frozenset[str] = frozenset()


def function_addresses(module: Module) -> dict[str, int]:
    """Return the addresses that stand for functions: the same in every process.

    They differ between modules, so that a call through an address of another one is noticed.
    """
    names = [f.name for f in module.functions.values() if f.body is not None and not f.is_entry]
    place = zlib.crc32("\0".join([*names, *module.functions]).encode())
    found = {name: _CODE + (place << 12) + 16 * (i + 1) for i, name in enumerate(names)}
    aliases = {alias: f.name for alias, f in module.functions.items() if alias != f.name}
    return found | {alias: found[name] for alias, name in aliases.items()}


def calls(function: Function) -> list[Instruction]:
    """Return the calls in a function."""
    steps = function.body or ()
    return [step for step in steps if isinstance(step, Instruction) and step.call is not None]


def is_system_call(call: Call) -> bool:
    """Return whether a call names a function of the device run time."""
    return isinstance(call.target, Symbol) and call.target.name in SYSTEM_CALLS


def callees(module: Module, step: Instruction) -> list[Function]:
    """Return the functions that a call may reach.

    Raises
    ------
    ImageError
        It names a function that the module does not have, or a kernel.
    """
    call = step.call
    assert call is not None
    if isinstance(call.target, Symbol):
        if is_system_call(call):
            return []
        function = module.functions.get(call.target.name)
        if function is None or function.body is None:
            name = call.target.name
            raise UnsupportedPtx(f"a call of the external function {name}", step.line)
        if function.is_entry:
            raise InvalidPtx(f"a call of the kernel {function.name}", step.line)
        return [function]
    named = call.targets or taken_addresses(module)
    found = [module.functions[name] for name in named if name in module.functions]
    fitting = [f for f in found if f.body is not None and not f.is_entry]
    if call.prototype is None:
        return fitting
    return [function for function in fitting if _fits(function, call.prototype)]


def taken_addresses(module: Module) -> tuple[str, ...]:
    """Return the functions whose addresses something in the module names, in its order."""
    if module.taken is None:
        names = {
            value.name
            for variable in module.variables.values()
            for value in variable.initial
            if isinstance(value, Symbol)
        }
        for function in module.functions.values():
            for step in function.body or ():
                if isinstance(step, Instruction):
                    names |= _symbols(step)
        module.taken = tuple(name for name in module.functions if name in names)
    return module.taken


def _symbols(step: Instruction) -> set[str]:
    operands = list(step.operands)
    for operand in step.operands:
        if isinstance(operand, Vector):
            operands += operand.items
    if step.call is not None:
        operands += step.call.arguments
    return {operand.name for operand in operands if isinstance(operand, Symbol)}


def _fits(function: Function, prototype: Prototype) -> bool:
    def sizes(variables: list[Variable] | tuple[Variable, ...]) -> list[int]:
        return [variable.size for variable in variables]

    return sizes(function.parameters) == sizes(prototype.parameters) and sizes(
        function.returns
    ) == sizes(prototype.returns)


def reach(module: Module, kernel: Function) -> Reach:
    """Return what a kernel reaches.

    Raises
    ------
    UnsupportedPtx
        Something calls what the module does not have.
    """
    edges: dict[str, list[Function]] = {}
    found, indirect, sites = [kernel], set(), dict[str, int]()
    for function in found:
        edges[function.name] = []
        for step in calls(function):
            assert step.call is not None
            targets = callees(module, step)
            if not isinstance(step.call.target, Symbol):
                indirect |= {target.name for target in targets}
            for target in targets:
                sites[target.name] = sites.get(target.name, 0) + 1
                edges[function.name].append(target)
                if all(target is not other for other in found):
                    found.append(target)
    standing = indirect | _in_cycles(found, edges)
    standing |= _too_large(found, edges, sites, standing)
    return Reach(found, frozenset(standing - {kernel.name}))


def _in_cycles(functions: list[Function], edges: dict[str, list[Function]]) -> set[str]:
    """Return the functions that reach themselves."""
    cyclic = set()
    for function in functions:
        pending, seen = list(edges[function.name]), set[str]()
        while pending:
            name = pending.pop().name
            if name not in seen:
                seen.add(name)
                pending += edges[name]
        if function.name in seen:
            cyclic.add(function.name)
    return cyclic


def _too_large(
    functions: list[Function],
    edges: dict[str, list[Function]],
    sites: dict[str, int],
    standing: set[str],
) -> set[str]:
    """Return functions of which inlining would make too many copies, or too deep ones."""
    large: set[str] = set()
    weights: dict[str, tuple[int, int]] = {}

    def weigh(function: Function) -> tuple[int, int]:
        """Return instructions and depth of a function with what is inlined into it."""
        if function.name not in weights:
            weight, depth = len(function.body or ()), 1
            for target in edges[function.name]:
                if target.name in standing:
                    continue
                inner, below = weigh(target)
                if target.name not in large:
                    weight, depth = weight + inner, max(depth, below + 1)
            if (sites.get(function.name, 0) > 1 and weight > MAX_COPIED) or depth > MAX_CALL_DEPTH:
                large.add(function.name)
            weights[function.name] = weight, depth
        return weights[function.name]

    for function in reversed(functions):
        weigh(function)
    return large
