"""The engine's loop in LLVM IR: take a command, execute it or skip it, tell who waits."""

from __future__ import annotations

from outlast.server.drivers.emulated.engine_layout import (
    COPY,
    FILL,
    LAUNCH,
    MAP,
    PAD,
    PARAMETERS_OFFSET,
    STAMP,
    UNMAP,
    WRITE,
    WRITE_OFFSET,
    fields,
)
from outlast.server.drivers.emulated.runtime import WORKER

#: The instruction that eases a spinning processor, by machine.
RELAX = {"x86_64": "pause", "aarch64": "yield"}

_SMALL_UNMAP = 64 << 10  # bytes; below it, clearing is cheaper than giving pages back
#: Looks at the ring before the processor is offered to others: some 5 us.
_SPINS = 400
#: How long it is offered before the engine sleeps. Waking it costs tens of microseconds, which
#: a program that launches and synchronises in turn would pay each time.
_PATIENCE = 300_000  # nanoseconds
_PUNCH_HOLE = 3  # without a change of the file's size


def _at(offset: int, name: str, kind: str) -> str:
    """Load a field of the command at ``%rec``."""
    return (
        f"  %{name}.p = getelementptr i8, ptr %rec, i64 {offset}\n"
        f"  %{name} = load {kind}, ptr %{name}.p\n"
    )


def _set_worker(name: str, offset: int, prefix: str = "l") -> str:
    """Copy a 32-bit field of a launch into a word of the worker block."""
    value = f"{prefix}.{name}"
    return (
        _at(offset, value, "i32")
        + f"  %{value}.64 = zext i32 %{value} to i64\n"
        + f"  %{value}.w = getelementptr i64, ptr %worker, i64 {WORKER[name]}\n"
        + f"  store i64 %{value}.64, ptr %{value}.w\n"
    )


def engine_loop(machine: str) -> str:
    """Return the IR of the loop that executes commands."""
    names = (
        *("head", "stop", "watchdog", "tail", "completed", "running_since", "running_tag"),
        "sleeping",
        *("wake_at", "watch_at", "error", "ring", "ring_mask"),
    )
    return f"""
define void @engine(ptr %c) {{
entry:
{fields(*names)}
  %ring = load ptr, ptr %ring.p
  %mask = load i64, ptr %ring_mask.p
  br label %loop
loop:
  %pos = phi i64 [0, %entry], [%pos, %idle.out], [%pos.next, %advance]
  %count = phi i64 [0, %entry], [%count, %idle.out], [%count.next, %advance]
  %halt = load volatile i64, ptr %stop.p
  %halted = icmp ne i64 %halt, 0
  br i1 %halted, label %return, label %look
look:
  %head = load atomic i64, ptr %head.p acquire, align 8
  %none = icmp eq i64 %head, %pos
  br i1 %none, label %spin, label %command
spin:
  %turn = phi i64 [0, %look], [%turn.next, %spin.more]
  call void asm sideeffect "{RELAX[machine]}", ""()
  %head1 = load atomic i64, ptr %head.p acquire, align 8
  %news = icmp ne i64 %head1, %pos
  br i1 %news, label %idle.out, label %spin.more
spin.more:
  %turn.next = add i64 %turn, 1
  %patient = icmp ult i64 %turn.next, {_SPINS}
  br i1 %patient, label %spin, label %offer.begin
offer.begin:
  %since = call i64 @now()
  br label %offer
offer:
  %y = call i32 @sched_yield()
  %head3 = load atomic i64, ptr %head.p acquire, align 8
  %news3 = icmp ne i64 %head3, %pos
  br i1 %news3, label %idle.out, label %offer.more
offer.more:
  %instant = call i64 @now()
  %waited = sub i64 %instant, %since
  %patient3 = icmp slt i64 %waited, {_PATIENCE}
  br i1 %patient3, label %offer, label %sleep
sleep:
  store atomic i64 1, ptr %sleeping.p seq_cst, align 8
  %head2 = load atomic i64, ptr %head.p seq_cst, align 8
  %halt2 = load atomic i64, ptr %stop.p seq_cst, align 8
  %quiet = icmp eq i64 %head2, %pos
  %going = icmp eq i64 %halt2, 0
  %rest = and i1 %quiet, %going
  br i1 %rest, label %doze, label %awake
doze:
  call void @futex_wait(ptr %sleeping.p, i32 1, ptr null)
  br label %awake
awake:
  store atomic i64 0, ptr %sleeping.p seq_cst, align 8
  br label %idle.out
idle.out:
  br label %loop

command:
  %offset = and i64 %pos, %mask
  %rec = getelementptr i8, ptr %ring, i64 %offset
  %kind = load i32, ptr %rec
{_at(4, "size", "i32")}{_at(8, "tag", "i64")}
  %size64 = zext i32 %size to i64
  %pos.next = add i64 %pos, %size64
  %failed = load volatile i64, ptr %error.p
  %healthy = icmp eq i64 %failed, 0
  switch i32 %kind, label %finish [
    i32 {PAD}, label %skip
    i32 {MAP}, label %map
    i32 {UNMAP}, label %unmap
    i32 {LAUNCH}, label %launch.check
    i32 {COPY}, label %copy.check
    i32 {WRITE}, label %write.check
    i32 {FILL}, label %fill.check
    i32 {STAMP}, label %stamp.check
  ]
launch.check:
  br i1 %healthy, label %launch, label %skipped
copy.check:
  br i1 %healthy, label %copy, label %skipped
write.check:
  br i1 %healthy, label %write, label %skipped
fill.check:
  br i1 %healthy, label %fill, label %skipped
stamp.check:
  br i1 %healthy, label %stamp, label %skipped
skipped:                                ; the error may have come between two launches
  call void @publish_fault(ptr %c, i64 %tag, i64 -1)
  br label %finish
{_launch()}
{_memory_commands()}
finish:
  %done.count = add i64 %count, 1
  store atomic i64 %pos.next, ptr %tail.p release, align 8
  store atomic i64 %done.count, ptr %completed.p seq_cst, align 8
  %wake.at = load atomic i64, ptr %wake_at.p seq_cst, align 8
  %wake.due = icmp ule i64 %wake.at, %done.count
  br i1 %wake.due, label %wake, label %watched
wake:
  call void @wake_waiters(ptr %c)
  br label %watched
watched:
  %watch.at = load atomic i64, ptr %watch_at.p seq_cst, align 8
  %watch.due = icmp ule i64 %watch.at, %done.count
  br i1 %watch.due, label %tell, label %advance
tell:
  %w.old = atomicrmw xchg ptr %watch_at.p, i64 -1 seq_cst
  call void @announce(ptr %c)
  br label %advance
skip:
  store atomic i64 %pos.next, ptr %tail.p release, align 8
  br label %advance
advance:
  %count.next = phi i64 [%count, %skip], [%done.count, %watched], [%done.count, %tell]
  br label %loop
return:
  ret void
}}
"""


def _launch() -> str:
    geometry = "".join(
        _set_worker(name, 40 + 4 * i) for i, name in enumerate(("gx", "gy", "gz", "nx", "ny", "nz"))
    )
    return f"""
launch:
{_at(16, "function", "ptr")}{_at(24, "worker", "ptr")}{_at(32, "kernel", "i64")}
{geometry}{_set_worker("shared_size", 64)}{_set_worker("dynamic", 68)}{_at(72, "plen", "i32")}
  %plen64 = zext i32 %plen to i64
  %inline = getelementptr i8, ptr %rec, i64 {PARAMETERS_OFFSET}
  %params.w = getelementptr i64, ptr %worker, i64 {WORKER["params"]}
  %params = load ptr, ptr %params.w
  %mm = call ptr @memmove(ptr %params, ptr %inline, i64 %plen64)
  %gxy = mul i64 %l.gx.64, %l.gy.64
  %blocks = mul i64 %gxy, %l.gz.64
  store i64 %tag, ptr %running_tag.p
  %timed = load volatile i64, ptr %watchdog.p
  %untimed = icmp eq i64 %timed, 0
  br i1 %untimed, label %run, label %note
note:
  %began = call i64 @now()
  store atomic i64 %began, ptr %running_since.p seq_cst, align 8
  br label %run
run:
  call void %function(ptr %worker, i64 0, i64 %blocks)
  br i1 %untimed, label %ran, label %unnote
unnote:
  store atomic i64 0, ptr %running_since.p seq_cst, align 8
  br label %ran
ran:
  %outcome = load volatile i64, ptr %error.p
  %fine = icmp eq i64 %outcome, 0
  br i1 %fine, label %finish, label %broken
broken:
  call void @publish_fault(ptr %c, i64 %tag, i64 %kernel)
  br label %finish
"""


def _memory_commands() -> str:
    return f"""
copy:
{_at(16, "c.to", "ptr")}{_at(24, "c.from", "ptr")}{_at(32, "c.len", "i64")}
  %c.r = call ptr @memmove(ptr %c.to, ptr %c.from, i64 %c.len)
  br label %finish
write:
{_at(16, "w.to", "ptr")}{_at(24, "w.len", "i64")}
  %w.from = getelementptr i8, ptr %rec, i64 {WRITE_OFFSET}
  %w.r = call ptr @memmove(ptr %w.to, ptr %w.from, i64 %w.len)
  br label %finish
fill:
{_at(16, "f.to", "ptr")}{_at(24, "f.count", "i64")}{_at(32, "f.value", "i32")}
{_at(36, "f.width", "i32")}
  switch i32 %f.width, label %finish [
    i32 1, label %fill.8
    i32 2, label %fill.16
    i32 4, label %fill.32
  ]
fill.8:
  %f.r = call ptr @memset(ptr %f.to, i32 %f.value, i64 %f.count)
  br label %finish
fill.16:
  %f.short = trunc i32 %f.value to i16
  br label %fill.16.test
fill.16.test:
  %f16.i = phi i64 [0, %fill.16], [%f16.next, %fill.16.one]
  %f16.more = icmp ult i64 %f16.i, %f.count
  br i1 %f16.more, label %fill.16.one, label %finish
fill.16.one:
  %f16.p = getelementptr i16, ptr %f.to, i64 %f16.i
  store i16 %f.short, ptr %f16.p
  %f16.next = add i64 %f16.i, 1
  br label %fill.16.test
fill.32:
  br label %fill.32.test
fill.32.test:
  %f32.i = phi i64 [0, %fill.32], [%f32.next, %fill.32.one]
  %f32.more = icmp ult i64 %f32.i, %f.count
  br i1 %f32.more, label %fill.32.one, label %finish
fill.32.one:
  %f32.p = getelementptr i32, ptr %f.to, i64 %f32.i
  store i32 %f.value, ptr %f32.p
  %f32.next = add i64 %f32.i, 1
  br label %fill.32.test
stamp:
{_at(16, "s.to", "ptr")}
  %s.now = call i64 @now()
  store atomic i64 %s.now, ptr %s.to seq_cst, align 8
  br label %finish
map:
{_at(16, "m.first", "ptr")}{_at(24, "m.pages", "i64")}
  %m.r = call ptr @memset(ptr %m.first, i32 1, i64 %m.pages)
  br label %finish
unmap:
{_at(16, "u.first", "ptr")}{_at(24, "u.pages", "i64")}
{_at(32, "u.from", "ptr")}{_at(40, "u.len", "i64")}
  %u.r = call ptr @memset(ptr %u.first, i32 0, i64 %u.pages)
  %u.small = icmp ule i64 %u.len, {_SMALL_UNMAP}
  br i1 %u.small, label %unmap.clear, label %unmap.return
unmap.clear:
  %u.c = call ptr @memset(ptr %u.from, i32 0, i64 %u.len)
  br label %finish
unmap.return:
{_at(48, "u.file", "i64")}{_at(56, "u.at", "i64")}
  %u.fd = trunc i64 %u.file to i32
  %u.m = call i32 @fallocate(i32 %u.fd, i32 {_PUNCH_HOLE}, i64 %u.at, i64 %u.len)
  %u.ok = icmp eq i32 %u.m, 0
  br i1 %u.ok, label %finish, label %unmap.clear
"""
