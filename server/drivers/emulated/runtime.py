"""What compiled kernels share with the engine: the worker block and helper functions in IR.

A worker block is an array of 64-bit words that tells a kernel where everything is.
Kernels whose threads meet (barriers, warp operations) run each thread as a coroutine, which
`scheduler` resumes.
"""

from __future__ import annotations

#: Word names of a worker block, in order.
WORKER_FIELDS = (
    *("params", "pagemap", "arena_base", "pages", "shared_base", "shared_size", "local_base"),
    *("nx", "ny", "nz", "gx", "gy", "gz", "dynamic"),
    *("error", "printf", "frame_base", "frame_end", "frame_cursor"),
    *("handles", "states", "outbox", "inbox", "keys", "arrived", "ballot", "barriers", "matrix"),
)
WORKER = {name: index for index, name in enumerate(WORKER_FIELDS)}

#: Arguments of the function that runs one thread, after the worker block.
THREAD_ARGUMENTS = {
    **dict.fromkeys(("params", "pagemap", "errors"), "ptr"),
    **dict.fromkeys(("arena_base", "pages", "shared_base", "shared_size", "lbase"), "i64"),
    **dict.fromkeys(("nx", "ny", "nz", "gx", "gy", "gz", "bx", "by", "bz"), "i32"),
    **dict.fromkeys(("tx", "ty", "tz", "lin"), "i32"),
}

MAX_THREADS = 1024  # of a block

# States of a thread that has returned to the scheduler, in the low bits of a word. Above them are
# the number of the barrier and the line of the PTX.
FINISHED, AT_BARRIER, AT_WARP = 0, 1, 2
STATE_MASK, ID_SHIFT, LINE_SHIFT = 3, 2, 6
BARRIERS = 16
#: Words of 32 bits that a barrier has: threads needed (0: all), arrived without waiting; and of
#: the last time that it let threads go on, how many had a true predicate, and how many there were.
BARRIER_WORDS = 4
#: Bytes in which a thread shows its part of matrices: two times, of at most 16 registers.
MATRIX_BYTES = 128


def load_word(name: str, kind: str = "ptr", result: str | None = None) -> str:
    """Return IR that loads a word of the worker block ``%w`` into ``%name``."""
    result = result or name
    return (
        f"  %{result}.p = getelementptr i64, ptr %w, i64 {WORKER[name]}\n"
        f"  %{result} = load {kind}, ptr %{result}.p\n"
    )


FAULT = f"""
define internal void @record_fault(ptr %w, i64 %code, i64 %address, i32 %line) cold noinline {{
{load_word("error")}
  %swap = cmpxchg ptr %error, i64 0, i64 %code seq_cst seq_cst
  %first = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %first, label %detail, label %done
detail:
  %address.p = getelementptr i64, ptr %error, i64 1
  store i64 %address, ptr %address.p
  %line.p = getelementptr i64, ptr %error, i64 2
  %line64 = zext i32 %line to i64
  store i64 %line64, ptr %line.p
  br label %done
done:
  ret void
}}
define internal i32 @print_formatted(ptr %w, i64 %format, i64 %values) noinline {{
{load_word("printf")}
  %r = call i32 %printf(i64 %format, i64 %values)
  ret i32 %r
}}
"""

_CLOCK_MONOTONIC = 1

#: `%globaltimer`: nanoseconds that never run backwards; PTX leaves open where they begin.
TIMER = f"""
declare i32 @clock_gettime(i32, ptr)
define internal i64 @nanoseconds() noinline {{
  %time = alloca {{ i64, i64 }}
  call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.p = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.p
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}}
"""

COROUTINE_DECLARATIONS = """
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
declare void @llvm.coro.resume(ptr)
declare void @llvm.trap() cold noreturn nounwind
"""

THREAD_STATE = f"""
define internal ptr @take_frame(ptr %w, i64 %size) {{
{load_word("frame_cursor", "i64")}{load_word("frame_end", "i64")}
  %padded = add i64 %size, 63
  %rounded = and i64 %padded, -64
  %next = add i64 %frame_cursor, %rounded
  %fits = icmp ule i64 %next, %frame_end
  br i1 %fits, label %good, label %bad
good:
  store i64 %next, ptr %frame_cursor.p
  %frame = inttoptr i64 %frame_cursor to ptr
  ret ptr %frame
bad:                                    ; the layout bounds a frame, so this is not reached
  call void @llvm.trap()
  unreachable
}}
define internal void @begin_block(ptr %w) {{
{load_word("frame_base", "i64")}{load_word("barriers")}
  %cursor = getelementptr i64, ptr %w, i64 {WORKER["frame_cursor"]}
  store i64 %frame_base, ptr %cursor
  store [{BARRIER_WORDS * BARRIERS} x i32] zeroinitializer, ptr %barriers
  ret void
}}
define internal void @keep_handle(ptr %w, i32 %thread, ptr %handle) {{
{load_word("handles")}
  %slot = getelementptr ptr, ptr %handles, i32 %thread
  store ptr %handle, ptr %slot
  ret void
}}
define internal void @set_state(ptr %w, i32 %thread, i32 %state) {{
{load_word("states")}
  %slot = getelementptr i32, ptr %states, i32 %thread
  store i32 %state, ptr %slot
  ret void
}}
define internal void @put_value(ptr %w, i32 %thread, i64 %value) {{
{load_word("outbox")}
  %slot = getelementptr i64, ptr %outbox, i32 %thread
  store i64 %value, ptr %slot
  ret void
}}
define internal void @put_key(ptr %w, i32 %thread, i64 %key) {{
{load_word("keys")}
  %slot = getelementptr i64, ptr %keys, i32 %thread
  store i64 %key, ptr %slot
  ret void
}}
define internal ptr @barrier_slot(ptr %w, i32 %field, i32 %number) {{
{load_word("barriers")}
  %row = mul i32 %field, {BARRIERS}
  %index = add i32 %row, %number
  %slot = getelementptr i32, ptr %barriers, i32 %index
  ret ptr %slot
}}
define internal i32 @barrier_word(ptr %w, i32 %field, i32 %number) {{
  %slot = call ptr @barrier_slot(ptr %w, i32 %field, i32 %number)
  %value = load i32, ptr %slot
  ret i32 %value
}}
define internal void @need(ptr %w, i32 %number, i32 %count) {{
  %slot = call ptr @barrier_slot(ptr %w, i32 0, i32 %number)
  store i32 %count, ptr %slot
  ret void
}}
; A barrier counts whole warps, so the block's last thread stands for the lanes behind it.
define internal void @arrive(ptr %w, i32 %thread, i32 %number) {{
{load_word("nx", "i64")}{load_word("ny", "i64")}{load_word("nz", "i64")}
  %nxy = mul i64 %nx, %ny
  %n = mul i64 %nxy, %nz
  %n32 = trunc i64 %n to i32
  %next = add i32 %thread, 1
  %last = icmp eq i32 %next, %n32
  %lane = and i32 %thread, 31
  %behind = sub i32 32, %lane
  %weight = select i1 %last, i32 %behind, i32 1
  %slot = call ptr @barrier_slot(ptr %w, i32 1, i32 %number)
  %old = load i32, ptr %slot
  %new = add i32 %old, %weight
  store i32 %new, ptr %slot
  ret void
}}
define internal i64 @get_value(ptr %w, i32 %thread, i32 %lane) {{
{load_word("inbox")}
  %first = and i32 %thread, -32
  %from = or i32 %first, %lane
  %slot = getelementptr i64, ptr %inbox, i32 %from
  %value = load i64, ptr %slot
  ret i64 %value
}}
define internal i32 @get_arrived(ptr %w, i32 %thread) {{
{load_word("arrived")}
  %warp = lshr i32 %thread, 5
  %slot = getelementptr i32, ptr %arrived, i32 %warp
  %value = load i32, ptr %slot
  ret i32 %value
}}
define internal i32 @get_ballot(ptr %w, i32 %thread) {{
{load_word("ballot")}
  %warp = lshr i32 %thread, 5
  %slot = getelementptr i32, ptr %ballot, i32 %warp
  %value = load i32, ptr %slot
  ret i32 %value
}}
"""
