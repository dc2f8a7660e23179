"""What compiled kernels share with the engine: the worker block and helper functions in IR.

A worker block is an array of 64-bit words that tells a kernel where everything is.
Kernels whose threads meet (barriers, warp operations) run each thread as a coroutine;
`SCHEDULER` resumes them: it runs a warp's lanes in order, exchanges values when all live
lanes of the warp wait, and releases the block's barrier when all live threads wait there.
"""

from __future__ import annotations

#: Word names of a worker block, in order.
WORKER_FIELDS = (
    *("params", "pagemap", "arena_base", "pages", "shared_base", "shared_size", "local_base"),
    *("nx", "ny", "nz", "gx", "gy", "gz", "dynamic"),
    *("error", "printf", "frame_base", "frame_end", "frame_cursor"),
    *("handles", "states", "outbox", "inbox", "arrived", "ballot"),
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

# States of a thread that has returned to the scheduler.
FINISHED, AT_BARRIER, AT_WARP = 0, 1, 2


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
define internal void @drop_frames(ptr %w) {{
{load_word("frame_base", "i64")}
  %cursor = getelementptr i64, ptr %w, i64 {WORKER["frame_cursor"]}
  store i64 %frame_base, ptr %cursor
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

SCHEDULER = f"""
define internal void @run_block(ptr %w, i32 %n) noinline {{
entry:
{load_word("handles")}{load_word("states")}{load_word("outbox")}{load_word("inbox")}
{load_word("arrived")}{load_word("ballot")}
  %n31 = add i32 %n, 31
  %warps = lshr i32 %n31, 5
  br label %round
round:                                  ; run every warp up to the block's barrier or its end
  br label %warp
warp:
  %wi = phi i32 [0, %round], [%wi.next, %warp.done]
  %waiting = phi i32 [0, %round], [%waiting.next, %warp.done]
  %t0 = shl i32 %wi, 5
  %t32 = add i32 %t0, 32
  %full = icmp ult i32 %t32, %n
  %t1 = select i1 %full, i32 %t32, i32 %n
  br label %scan
scan:                                   ; who waits for the warp, and with which value
  br label %scan.lane
scan.lane:
  %si = phi i32 [%t0, %scan], [%si.next, %scan.next]
  %here = phi i32 [0, %scan], [%here.next, %scan.next]
  %votes = phi i32 [0, %scan], [%votes.next, %scan.next]
  %barred = phi i32 [0, %scan], [%barred.next, %scan.next]
  %state.p = getelementptr i32, ptr %states, i32 %si
  %state = load i32, ptr %state.p
  %at.warp = icmp eq i32 %state, {AT_WARP}
  %at.bar = icmp eq i32 %state, {AT_BARRIER}
  %at.bar32 = zext i1 %at.bar to i32
  %barred.next = or i32 %barred, %at.bar32
  br i1 %at.warp, label %collect, label %scan.next
collect:
  %out.p = getelementptr i64, ptr %outbox, i32 %si
  %out = load i64, ptr %out.p
  %in.p = getelementptr i64, ptr %inbox, i32 %si
  store i64 %out, ptr %in.p
  br label %scan.next
scan.next:
  %value = phi i64 [0, %scan.lane], [%out, %collect]
  %one = phi i32 [0, %scan.lane], [1, %collect]
  %lane = and i32 %si, 31
  %bit = shl i32 %one, %lane
  %here.next = or i32 %here, %bit
  %value32 = trunc i64 %value to i32
  %vote = and i32 %value32, 1
  %vote.bit = shl i32 %vote, %lane
  %votes.next = or i32 %votes, %vote.bit
  %si.next = add i32 %si, 1
  %scan.more = icmp ult i32 %si.next, %t1
  br i1 %scan.more, label %scan.lane, label %scan.done
scan.done:
  %nobody = icmp eq i32 %here.next, 0
  br i1 %nobody, label %warp.done, label %exchange
exchange:                               ; publish the warp's values and resume its lanes
  %arrived.slot = getelementptr i32, ptr %arrived, i32 %wi
  store i32 %here.next, ptr %arrived.slot
  %ballot.slot = getelementptr i32, ptr %ballot, i32 %wi
  store i32 %votes.next, ptr %ballot.slot
  br label %resume.lane
resume.lane:
  %ri = phi i32 [%t0, %exchange], [%ri.next, %resume.next]
  %ri.lane = and i32 %ri, 31
  %ri.mask = lshr i32 %here.next, %ri.lane
  %ri.bit = and i32 %ri.mask, 1
  %ri.on = icmp ne i32 %ri.bit, 0
  br i1 %ri.on, label %resume, label %resume.next
resume:
  %rh.p = getelementptr ptr, ptr %handles, i32 %ri
  %rh = load ptr, ptr %rh.p
  call void @llvm.coro.resume(ptr %rh)
  br label %resume.next
resume.next:
  %ri.next = add i32 %ri, 1
  %resume.more = icmp ult i32 %ri.next, %t1
  br i1 %resume.more, label %resume.lane, label %scan
warp.done:
  %waiting.next = or i32 %waiting, %barred.next
  %wi.next = add i32 %wi, 1
  %warp.more = icmp ult i32 %wi.next, %warps
  br i1 %warp.more, label %warp, label %round.done
round.done:
  %finished = icmp eq i32 %waiting.next, 0
  br i1 %finished, label %done, label %release
release:                                ; every live thread is at the barrier
  br label %release.thread
release.thread:
  %bi = phi i32 [0, %release], [%bi.next, %release.next]
  %bstate.p = getelementptr i32, ptr %states, i32 %bi
  %bstate = load i32, ptr %bstate.p
  %bwait = icmp eq i32 %bstate, {AT_BARRIER}
  br i1 %bwait, label %release.one, label %release.next
release.one:
  %bh.p = getelementptr ptr, ptr %handles, i32 %bi
  %bh = load ptr, ptr %bh.p
  call void @llvm.coro.resume(ptr %bh)
  br label %release.next
release.next:
  %bi.next = add i32 %bi, 1
  %release.more = icmp ult i32 %bi.next, %n
  br i1 %release.more, label %release.thread, label %round
done:
  ret void
}}
"""
