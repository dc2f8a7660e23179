"""Where a thread pauses, and what it shows the others then."""

from __future__ import annotations

from outlast.server.drivers.emulated.lower.builder import Builder
from outlast.server.drivers.emulated.runtime import AT_WARP, LINE_SHIFT


def pause(b: Builder, state: str) -> None:
    """Return to the scheduler in a state; go on when it resumes the thread."""
    resumed = b.new_label()
    state = b.op("or", "i32", state, b.line << LINE_SHIFT & 0x7FFFFFFF)
    b.emit(f"call void @set_state(ptr %w, i32 %lin, i32 {state})")
    answer = b.let("call i8 @llvm.coro.suspend(token none, i1 false)")
    b.emit(f"switch i8 {answer}, label %suspend [ i8 0, label %{resumed} i8 1, label %suspend ]")
    b.ended = True
    b.place(resumed)


def exchange(b: Builder, value: str, mask: str) -> None:
    """Show a 64-bit value to the lanes of a mask, and wait until all of them do."""
    b.emit(f"call void @put_value(ptr %w, i32 %lin, i64 {value})")
    b.emit(f"call void @put_key(ptr %w, i32 %lin, i64 {b.resize(mask, 32, 64)})")
    pause(b, str(AT_WARP))


def meet(b: Builder) -> None:
    """Wait until no lane of the warp can go on without those that are here."""
    b.emit(f"call void @put_key(ptr %w, i32 %lin, i64 {b.line << 32})")
    pause(b, str(AT_WARP))


def seen(b: Builder, lane: str | int) -> str:
    """Return the 64-bit value that a lane has shown."""
    return b.let(f"call i64 @get_value(ptr %w, i32 %lin, i32 {lane})")


def arrived(b: Builder) -> str:
    """Return the mask of the lanes that have met."""
    return b.let("call i32 @get_arrived(ptr %w, i32 %lin)")


def own_lane(b: Builder) -> str:
    """Return the thread's number in its warp."""
    return b.op("and", "i32", "%lin", 31)
