"""A kernel as one LLVM module: the thread, the loop over blocks, and what they call."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.server.drivers.emulated import runtime, scheduler
from outlast.server.drivers.emulated.lower import (
    atomics,
    barriers,
    bits,
    calls,
    control,
    convert,
    copies,
    floating,
    hints,
    integer,
    matrices,
    memory,
    selection,
    tiles,
    warp,
)
from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.lower.layout import Layout
from outlast.server.drivers.emulated.ptx.nodes import Function, Module
from outlast.server.drivers.emulated.runtime import THREAD_ARGUMENTS

#: The modules that register a lowering for every opcode.
FAMILIES = (
    *(atomics, barriers, bits, calls, control, convert, copies, floating, hints, integer, memory),
    *(matrices, selection, tiles, warp),
)

_METADATA = '!0 = !{!"branch_weights", i32 100000, i32 1}\n!1 = !{}\n'


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """LLVM IR of a kernel."""

    ir: str
    #: Module variables whose addresses the kernel reads from its table, in order.
    global_names: tuple[str, ...]


def lower_kernel(module: Module, kernel: Function, layout: Layout) -> LoweredKernel:
    """Lower one kernel.

    The result exports ``run_blocks(worker, first, end)`` and ``global_table()``, the address
    of the table that the loader fills with the addresses of module variables.

    Raises
    ------
    ImageError
        The kernel is wrong or needs what this device does not do.
    """
    builder = Builder(module, kernel, layout)
    control.lower_body(builder, kernel)
    calls.lower_standing(builder)
    names = tuple(builder.global_names)
    parts = [
        f"@global_addresses = global [{max(len(names), 1)} x i64] zeroinitializer",
        "define ptr @global_table() {\n  ret ptr @global_addresses\n}",
        runtime.FAULT,
        *((runtime.COROUTINE_DECLARATIONS, runtime.THREAD_STATE) if layout.meets else ()),
        *((scheduler.SCHEDULER,) if layout.meets else ()),
        _thread(builder, layout),
        _block_loop(layout),
        *sorted(builder.declarations),
        _METADATA,
    ]
    return LoweredKernel("\n".join(parts), names)


def _arguments() -> str:
    return ", ".join(f"{kind} %{name}" for name, kind in THREAD_ARGUMENTS.items())


def _thread(b: Builder, layout: Layout) -> str:
    head = ["  %carry = alloca i1", "  store i1 false, ptr %carry"]
    head += ["  %stack = alloca i64", "  store i64 0, ptr %stack", *b.slots]
    if not layout.meets:
        opening = f"define internal void @thread(ptr %w, {_arguments()}) alwaysinline {{\nentry:"
        closing = ["exit:", "  ret void", "}"]
        return "\n".join([opening, *head, *b.lines, *closing])
    opening = (
        f"define internal ptr @thread(ptr %w, {_arguments()}) presplitcoroutine {{\n"
        "entry:\n"
        "  %id = call token @llvm.coro.id(i32 16, ptr null, ptr null, ptr null)\n"
        "  %size = call i64 @llvm.coro.size.i64()\n"
        "  %memory = call ptr @take_frame(ptr %w, i64 %size)\n"
        "  %handle = call ptr @llvm.coro.begin(token %id, ptr %memory)"
    )
    closing = [
        "exit:",
        f"  call void @set_state(ptr %w, i32 %lin, i32 {runtime.FINISHED})",
        "  br label %suspend",
        "suspend:",
        "  call void @llvm.coro.end(ptr %handle, i1 false, token none)",
        "  ret ptr %handle",
        "}",
    ]
    return "\n".join([opening, *head, *b.lines, *closing])


def _loads() -> str:
    """Load the worker block's words once per launch."""
    lines = []
    for name, kind in THREAD_ARGUMENTS.items():
        if name == "errors":
            lines.append(runtime.load_word("error", "ptr", "errors"))
        elif name in runtime.WORKER and kind == "i32":
            lines.append(runtime.load_word(name, "i64", f"{name}64"))
            lines.append(f"  %{name} = trunc i64 %{name}64 to i32\n")
        elif name in runtime.WORKER:
            lines.append(runtime.load_word(name, kind))
    lines.append(runtime.load_word("local_base", "i64"))
    return "".join(lines)


def _block_loop(layout: Layout) -> str:
    """Run blocks ``first`` to ``end``, each thread by thread."""
    meets = layout.meets
    begin = "call void @begin_block(ptr %w)" if meets else ""
    run = f"{'%handle = call ptr' if meets else 'call void'} @thread(ptr %w, {_arguments()})"
    keep = "call void @keep_handle(ptr %w, i32 %lin, ptr %handle)" if meets else ""
    finish = "call void @run_block(ptr %w, i32 %threads)" if meets else ""
    return f"""
define void @run_blocks(ptr noalias %w, i64 %first, i64 %end) {{
entry:
{_loads()}
  %nxy = mul i32 %nx, %ny
  %threads = mul i32 %nxy, %nz
  br label %block
block:
  %index = phi i64 [%first, %entry], [%index.next, %block.done]
  %more = icmp ult i64 %index, %end
  %failed = load volatile i64, ptr %errors
  %healthy = icmp eq i64 %failed, 0
  %go = and i1 %more, %healthy
  br i1 %go, label %block.start, label %done
block.start:
  %bx64 = urem i64 %index, %gx64
  %rows = udiv i64 %index, %gx64
  %by64 = urem i64 %rows, %gy64
  %bz64 = udiv i64 %rows, %gy64
  %bx = trunc i64 %bx64 to i32
  %by = trunc i64 %by64 to i32
  %bz = trunc i64 %bz64 to i32
  {begin}
  br label %loop.z
loop.z:
  %tz = phi i32 [0, %block.start], [%tz.next, %done.y]
  br label %loop.y
loop.y:
  %ty = phi i32 [0, %loop.z], [%ty.next, %done.x]
  %row0 = mul i32 %tz, %ny
  %row1 = add i32 %row0, %ty
  %row = mul i32 %row1, %nx
  br label %loop.x
loop.x:
  %tx = phi i32 [0, %loop.y], [%tx.next, %loop.x]
  %lin = add i32 %row, %tx
  %lin64 = zext i32 %lin to i64
  %local = mul i64 %lin64, {layout.thread_local}
  %lbase = add i64 %local_base, %local
  {run}
  {keep}
  %tx.next = add i32 %tx, 1
  %more.x = icmp ult i32 %tx.next, %nx
  br i1 %more.x, label %loop.x, label %done.x
done.x:
  %ty.next = add i32 %ty, 1
  %more.y = icmp ult i32 %ty.next, %ny
  br i1 %more.y, label %loop.y, label %done.y
done.y:
  %tz.next = add i32 %tz, 1
  %more.z = icmp ult i32 %tz.next, %nz
  br i1 %more.z, label %loop.z, label %block.end
block.end:
  {finish}
  br label %block.done
block.done:
  %index.next = add i64 %index, 1
  br label %block
done:
  ret void
}}"""
