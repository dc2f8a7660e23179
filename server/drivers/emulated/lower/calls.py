"""Calls: of functions that are inlined, and of those that stand.

A function that stands is a part of the thread's code that every call jumps into. What it works
with lies in slots of the thread, as if it were inlined. Before it calls on, the caller's slots are
saved on a stack in local memory, since the call may come back to the same function; a number
says to which call a function returns. So threads pause in any depth of calls.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import B32, B64, Builder, Frame, Standing
from outlast.server.drivers.emulated.lower.callgraph import callees, is_system_call
from outlast.server.drivers.emulated.lower.control import LIKELY, fail, lower_body
from outlast.server.drivers.emulated.lower.layout import align_up
from outlast.server.drivers.emulated.lower.registry import lowers
from outlast.server.drivers.emulated.ptx.nodes import (
    Function,
    Instruction,
    Operand,
    Register,
    Symbol,
    Variable,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx

_ASSERT, _STACK_ERROR, _INVALID_PC = 710, 714, 718

#: A formal parameter with what a call gives for it.
Pair = tuple[Variable, Operand]


@lowers("call", operands=0, words="uni")
def call(b: Builder, ins: Instruction) -> None:
    """Lower ``call``."""
    assert ins.call is not None
    if is_system_call(ins.call):
        _system_call(b, ins)
    elif isinstance(ins.call.target, Symbol):
        _call_function(b, ins, callees(b.module, ins)[0])
    else:
        _call_address(b, ins)


def _call_address(b: Builder, ins: Instruction) -> None:
    """Call the function whose address is in a register."""
    assert ins.call is not None
    targets = callees(b.module, ins)
    address, after, nowhere = b.value(ins.call.target, B64), b.new_label(), b.new_label()
    labels = [b.new_label() for _ in targets]
    cases = " ".join(
        f"i64 {b.functions[target.name]}, label %{label}"
        for target, label in zip(targets, labels, strict=True)
    )
    b.emit(f"switch i64 {address}, label %{nowhere} [ {cases} ]")
    b.ended = True
    for target, label in zip(targets, labels, strict=True):
        b.place(label)
        _call_function(b, ins, target)
        b.jump(after)
    b.place(nowhere)
    fail(b, ins, _INVALID_PC)
    b.place(after)


def _call_function(b: Builder, ins: Instruction, function: Function) -> None:
    assert ins.call is not None
    arguments = list(zip(function.parameters, ins.call.arguments, strict=False))
    results = list(zip(function.returns, ins.call.returns, strict=False))
    if (len(function.parameters), len(function.returns)) != (
        len(ins.call.arguments),
        len(ins.call.returns),
    ):
        raise InvalidPtx(f"wrong number of arguments for {function.name}", ins.line)
    if function.name in b.layout.standing:
        _enter_standing(b, ins, function, arguments, results)
    else:
        _inline(b, function, arguments, results)


def _inline(b: Builder, function: Function, arguments: list[Pair], results: list[Pair]) -> None:
    bound = {f.name: _place_of(b, f, given) for f, given in arguments if f.space == "param"}
    bound |= {f.name: _result_place(b, f, given) for f, given in results if f.space == "param"}
    registers = [(f, b.value(given, f.scalar.raw)) for f, given in arguments if f.space == "reg"]
    after = b.new_label()
    b.enter(function, after, bound)
    for formal, value in registers:
        b.assign(Register(formal.name), formal.scalar.raw, value)
    lower_body(b, function)
    b.place(after)
    outputs = {
        f.name: b.value(Register(f.name), f.scalar.raw) for f, _ in results if f.space == "reg"
    }
    b.leave()
    for formal, given in results:
        if formal.space == "reg":
            b.assign(given, formal.scalar.raw, outputs[formal.name])
        else:
            _take_result(b, formal, given, bound[formal.name])


def _place_of(b: Builder, formal: Variable, given: Operand) -> str:
    """Return a pointer to an argument: the caller's variable, or a place for its value."""
    if isinstance(given, Symbol) and _is_parameter(b, given):
        return b.parameter_pointer(given, formal.size)
    value, place = b.value(given, formal.scalar.raw), b.temporary(max(formal.size, 16))
    b.emit(f"store {formal.scalar.raw.integer} {value}, ptr {place}")
    return place


def _is_parameter(b: Builder, symbol: Symbol) -> bool:
    variable = b.frame.function.variables.get(symbol.name)
    return symbol.name in b.frame.bound or (variable is not None and variable.space == "param")


def _result_place(b: Builder, formal: Variable, given: Operand) -> str:
    """Return a pointer to where a result goes at first."""
    if isinstance(given, Symbol) and given.name != "_":
        return b.parameter_pointer(given, formal.size)
    return b.temporary(max(formal.size, 16))


def _take_result(b: Builder, formal: Variable, given: Operand, place: str) -> None:
    """Read a result into a register; what went into a variable is there."""
    if not isinstance(given, Symbol):
        value = b.let(f"load {formal.scalar.raw.integer}, ptr {place}")
        b.assign(given, formal.scalar.raw, value)


# -- functions that stand ----------------------------------------------------


def _enter_standing(
    b: Builder, ins: Instruction, function: Function, arguments: list[Pair], results: list[Pair]
) -> None:
    target = b.enter_standing(function)
    root = b.standing.get(b.frames[0].function.name)
    after = b.new_label()
    # The arguments may lie in slots that the call is about to fill: they are copied first.
    copies = []
    for formal, given in arguments:
        if formal.space == "param":
            place = b.temporary(max(formal.size, 16))
            _copy(b, place, _place_of(b, formal, given), formal.size)
            copies.append((target.frame.bound[formal.name], place, formal.size))
    values = [(f, b.value(given, f.scalar.raw)) for f, given in arguments if f.space == "reg"]
    slots = _saved(b, root)
    _push(b, ins, target, root, slots)
    for place, source, size in copies:
        _copy(b, place, source, size)
    for formal, value in values:
        t = formal.scalar.raw.integer
        b.emit(f"store {t} {value}, ptr {target.frame.slot(formal.name)}")
    b.emit(f"store i32 {len(target.sites)}, ptr %return.to.{target.number}")
    target.sites.append(after)
    b.jump(f"function.{target.number}")
    b.place(after)
    given_back = [_keep_result(b, target, formal) for formal, _ in results]
    _pop(b, root, slots)
    for (formal, given), place in zip(results, given_back, strict=True):
        if isinstance(given, Symbol) and given.name != "_":
            _copy(b, b.parameter_pointer(given, formal.size), place, formal.size)
        else:
            _take_result(b, formal, given, place)


def _keep_result(b: Builder, target: Standing, formal: Variable) -> str:
    """Copy a result out of the function's slots, which the caller's state may be restored into."""
    place = b.temporary(max(formal.size, 16))
    if formal.space == "reg":
        t = formal.scalar.raw.integer
        value = b.let(f"load {t}, ptr {target.frame.slot(formal.name)}")
        b.emit(f"store {t} {value}, ptr {place}")
    else:
        _copy(b, place, target.frame.bound[formal.name], formal.size)
    return place


def _copy(b: Builder, target: str, source: str, size: int) -> None:
    b.declarations.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    b.emit(f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")


def _saved(b: Builder, root: Standing | None) -> list[tuple[str, str, int]]:
    """Return slots, LLVM types and offsets of what a caller that stands saves; size at the end."""
    found: list[tuple[str, str, int]] = []
    offset = 0
    if root is None:
        return found
    items = [(f"%return.to.{root.number}", "i32", 4)]
    function = root.frame.function
    items += [
        (root.frame.bound[formal.name], f"[{formal.size} x i8]", formal.size)
        for formal in (*function.parameters, *function.returns)
        if formal.space == "param"
    ]
    for frame in b.frames:
        items += _slots_of(frame)
    for slot, kind, size in items:
        offset = align_up(offset, 16)
        found.append((slot, kind, offset))
        offset += size
    return [*found, ("", "", align_up(offset, 16))]


def _slots_of(frame: Frame) -> list[tuple[str, str, int]]:
    function = frame.function
    items = [
        (frame.slot(name), scalar.integer, scalar.size)
        for name, scalar in function.registers.items()
    ]
    items += [
        (frame.slot(v.name), f"[{max(v.size, 1)} x i8]", max(v.size, 1))
        for v in function.variables.values()
        if v.space == "param"
    ]
    return items


def _frame_size(b: Builder, standing: Standing) -> str:
    """Return the bytes of local variables of a function; they are counted when it is lowered."""
    return b.let(f"load i64, ptr @frame_size.{standing.number}")


def _push(
    b: Builder,
    ins: Instruction,
    target: Standing,
    root: Standing | None,
    slots: list[tuple[str, str, int]],
) -> None:
    """Save the caller's slots and move the stack behind them, if there is room."""
    if root is None:
        saved = new = str(b.layout.local_size)
    else:
        old = b.let("load i64, ptr %stack")
        saved = b.op("add", "i64", old, _frame_size(b, root))
        new = b.op("add", "i64", saved, slots[-1][2])
    end = b.op("add", "i64", new, _frame_size(b, target))
    fits, full = b.new_label(), b.new_label()
    b.branch(b.op("icmp ule", "i64", end, b.layout.thread_local), fits, full, LIKELY)
    b.place(full)
    fail(b, ins, _STACK_ERROR)
    b.place(fits)
    for slot, kind, offset in slots[:-1]:
        place = _stack_pointer(b, saved, offset)
        if kind.startswith("["):
            _copy(b, place, slot, int(kind[1:].split(" ")[0]))
        else:
            b.emit(f"store {kind} {b.let(f'load {kind}, ptr {slot}')}, ptr {place}")
    b.emit(f"store i64 {new}, ptr %stack")


def _pop(b: Builder, root: Standing | None, slots: list[tuple[str, str, int]]) -> None:
    """Undo `_push`."""
    if root is None:
        return
    new = b.let("load i64, ptr %stack")
    saved = b.op("sub", "i64", new, slots[-1][2])
    b.emit(f"store i64 {b.op('sub', 'i64', saved, _frame_size(b, root))}, ptr %stack")
    for slot, kind, offset in slots[:-1]:
        place = _stack_pointer(b, saved, offset)
        if kind.startswith("["):
            _copy(b, slot, place, int(kind[1:].split(" ")[0]))
        else:
            b.emit(f"store {kind} {b.let(f'load {kind}, ptr {place}')}, ptr {slot}")


def _stack_pointer(b: Builder, place: str, offset: int) -> str:
    address = b.op("add", "i64", b.op("add", "i64", place, "%lbase"), offset)
    return b.cast("inttoptr", "i64", address, "ptr")


def lower_standing(b: Builder) -> None:
    """Lower the functions that stand, once all that calls them at first is lowered."""
    done = 0
    while done < len(b.standing):
        standing = list(b.standing.values())[done]
        done += 1
        b.begin_standing(standing)
        b.place(f"function.{standing.number}")
        lower_body(b, standing.frame.function)
        b.end_standing(standing)
    for standing in b.standing.values():
        number = standing.number
        b.place(f"return.{number}")
        place = b.let(f"load i32, ptr %return.to.{number}")
        cases = " ".join(f"i32 {i}, label %{site}" for i, site in enumerate(standing.sites))
        b.emit(f"switch i32 {place}, label %exit [ {cases} ]")
        b.ended = True


# -- the device run time -----------------------------------------------------


def _system_call(b: Builder, ins: Instruction) -> None:
    assert ins.call is not None
    assert isinstance(ins.call.target, Symbol)
    if ins.call.target.name == "__assertfail":
        fail(b, ins, _ASSERT)
        return
    if len(ins.call.arguments) != 2:
        raise InvalidPtx("vprintf needs two arguments", ins.line)
    text, values = (_parameter(b, ins, argument) for argument in ins.call.arguments)
    result = b.let(f"call i32 @print_formatted(ptr %w, i64 {text}, i64 {values})")
    for target in ins.call.returns:
        if isinstance(target, Symbol):
            b.emit(f"store i32 {result}, ptr {b.parameter_pointer(target, 4)}")
        else:
            b.assign(target, B32, result)


def _parameter(b: Builder, ins: Instruction, argument: Operand) -> str:
    if isinstance(argument, Symbol):
        return b.let(f"load i64, ptr {b.parameter_pointer(argument, 8)}")
    raise UnsupportedPtx(f"{ins.text} with register arguments", ins.line)
