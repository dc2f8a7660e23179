"""The command engine in LLVM IR: what runs on the device's thread, and how to talk to it.

Python writes commands into a ring; `engine` executes them strictly in issue order on one
thread that never holds the GIL. The control block is an array of 64-bit words that both
sides share. Each side writes words of its own, so the only rules are those of publication:
a command is complete before ``head`` moves, and its effects are before ``completed`` moves.

Who sleeps says so first and then looks again, and who makes news looks for sleepers after
making it (all sequentially consistent), so no wake-up is lost.
"""

from __future__ import annotations

import platform

from outlast.errors import ConfigError
from outlast.server.drivers.emulated.engine_layout import field, fields
from outlast.server.drivers.emulated.engine_loop import engine_loop

_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 128, 129  # FUTEX_*_PRIVATE
#: How long a waiter offers its processor to others before it sleeps.
_OFFER = 50_000  # nanoseconds
_CLOCK_MONOTONIC = 1


def engine_ir() -> str:
    """Return the IR of the engine and its helpers for this machine.

    Raises
    ------
    ConfigError
        The machine is no Linux on x86-64 or AArch64.
    """
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in _FUTEX:
        raise ConfigError(f"the emulated device runs on Linux (x86-64, AArch64), not on {machine}")
    return "\n".join(
        (_declarations(_FUTEX[machine]), _helpers(), _producer(), _waiter(), engine_loop(machine))
    )


def _declarations(futex: int) -> str:
    return f"""
declare i64 @syscall(i64, ...)
declare i64 @write(i32, ptr, i64)
declare ptr @memmove(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare i32 @fallocate(i32, i32, i64, i64)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
@one = internal constant i64 1
define internal void @futex_wake(ptr %word) noinline {{
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 {_WAKE}, i32 2147483647, ptr null)
  ret void
}}
define internal void @futex_wait(ptr %word, i32 %value, ptr %timeout) noinline {{
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 {_WAIT}, i32 %value, ptr %timeout)
  ret void
}}
"""


def _helpers() -> str:
    return f"""
define internal i64 @now() {{
  %ts = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC}, ptr %ts)
  %sec = load i64, ptr %ts
  %nsec.p = getelementptr i64, ptr %ts, i64 1
  %nsec = load i64, ptr %nsec.p
  %scaled = mul i64 %sec, 1000000000
  %ns = add i64 %scaled, %nsec
  ret i64 %ns
}}
define internal void @announce(ptr %c) noinline {{
{field("descriptor")}
  %fd64 = load i64, ptr %descriptor.p
  %fd = trunc i64 %fd64 to i32
  %r = call i64 @write(i32 %fd, ptr @one, i64 8)
  ret void
}}
define internal void @wake_waiters(ptr %c) noinline {{
{fields("wake_at", "wakes")}
  %o = atomicrmw xchg ptr %wake_at.p, i64 -1 seq_cst
  %w = atomicrmw add ptr %wakes.p, i64 1 seq_cst
  call void @futex_wake(ptr %wakes.p)
  ret void
}}
; Turn an error into a fault that names its command; the first one stays.
define internal void @publish_fault(ptr %c, i64 %tag, i64 %kernel) noinline {{
{fields("error", "fault", "fault_tag", "fault_kernel")}
  %old = load i64, ptr %fault.p
  %fresh = icmp eq i64 %old, 0
  br i1 %fresh, label %yes, label %no
yes:
  %code = load i64, ptr %error.p
  store i64 %tag, ptr %fault_tag.p
  store i64 %kernel, ptr %fault_kernel.p
  store atomic i64 %code, ptr %fault.p seq_cst, align 8
  call void @announce(ptr %c)
  br label %no
no:
  ret void
}}
"""


def _producer() -> str:
    return f"""
; Make commands up to ``head`` visible; wake the engine if it sleeps.
define void @publish(ptr %c, i64 %head) {{
{fields("head", "sleeping")}
  store atomic i64 %head, ptr %head.p seq_cst, align 8
  %s = load atomic i64, ptr %sleeping.p seq_cst, align 8
  %z = icmp eq i64 %s, 0
  br i1 %z, label %done, label %wake
wake:
  %o = atomicrmw xchg ptr %sleeping.p, i64 0 seq_cst
  call void @futex_wake(ptr %sleeping.p)
  br label %done
done:
  ret void
}}
; Ask for the descriptor to become readable when ``ticket`` is done.
define void @watch(ptr %c, i64 %ticket) {{
{fields("watch_at", "completed")}
  %o = atomicrmw umin ptr %watch_at.p, i64 %ticket seq_cst
  %done = load atomic i64, ptr %completed.p seq_cst, align 8
  %late = icmp uge i64 %done, %ticket
  br i1 %late, label %now, label %end
now:
  call void @announce(ptr %c)
  br label %end
end:
  ret void
}}
; End what runs, and all that is queued, with ``code``; false if something failed before.
define i32 @fail(ptr %c, i64 %code) {{
{fields("error")}
  %x = cmpxchg ptr %error.p, i64 0, i64 %code seq_cst seq_cst
  %first = extractvalue {{ i64, i1 }} %x, 1
  %r = zext i1 %first to i32
  ret i32 %r
}}
; Make the engine return.
define void @stop(ptr %c) {{
{fields("stop", "sleeping")}
  store atomic i64 1, ptr %stop.p seq_cst, align 8
  %o = atomicrmw xchg ptr %sleeping.p, i64 0 seq_cst
  call void @futex_wake(ptr %sleeping.p)
  call void @wake_waiters(ptr %c)
  ret void
}}
"""


def _waiter() -> str:
    return f"""
; Block until ``ticket`` is done (1) or ``timeout`` nanoseconds have passed (0).
define i32 @wait_for(ptr %c, i64 %ticket, i64 %timeout) {{
entry:
{fields("completed", "wake_at", "wakes", "stop")}
  %ts = alloca [2 x i64]
  %nsec.p = getelementptr i64, ptr %ts, i64 1
  %d0 = load atomic i64, ptr %completed.p seq_cst, align 8
  %early = icmp uge i64 %d0, %ticket
  br i1 %early, label %yes, label %begin
begin:
  %start = call i64 @now()
  %brief = icmp ult i64 %timeout, {_OFFER}
  %offer.for = select i1 %brief, i64 %timeout, i64 {_OFFER}
  br label %offer
offer:                                  ; short work ends before a sleep would have begun
  %y = call i32 @sched_yield()
  %d1 = load atomic i64, ptr %completed.p seq_cst, align 8
  %soon = icmp uge i64 %d1, %ticket
  br i1 %soon, label %yes, label %offer.more
offer.more:
  %t1 = call i64 @now()
  %offered = sub i64 %t1, %start
  %patient = icmp slt i64 %offered, %offer.for
  br i1 %patient, label %offer, label %again
again:
  %generation = load atomic i64, ptr %wakes.p seq_cst, align 8
  %o = atomicrmw umin ptr %wake_at.p, i64 %ticket seq_cst
  %done = load atomic i64, ptr %completed.p seq_cst, align 8
  %ready = icmp uge i64 %done, %ticket
  br i1 %ready, label %yes, label %check
check:
  %stopped = load atomic i64, ptr %stop.p seq_cst, align 8
  %live = icmp eq i64 %stopped, 0
  %t = call i64 @now()
  %spent = sub i64 %t, %start
  %left = sub i64 %timeout, %spent
  %time = icmp sgt i64 %left, 0
  %go = and i1 %live, %time
  br i1 %go, label %sleep, label %no
sleep:
  %sec = udiv i64 %left, 1000000000
  %nsec = urem i64 %left, 1000000000
  store i64 %sec, ptr %ts
  store i64 %nsec, ptr %nsec.p
  %g32 = trunc i64 %generation to i32
  call void @futex_wait(ptr %wakes.p, i32 %g32, ptr %ts)
  br label %again
yes:
  ret i32 1
no:
  ret i32 0
}}
"""
