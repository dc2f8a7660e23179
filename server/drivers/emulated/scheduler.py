"""The scheduler of a block's threads, in LLVM IR.

It runs the lanes of a warp in order. Lanes that wait for a warp operation go on together when all
live lanes of their mask wait with the same mask. Lanes that only look who is there go on when no
other lane of the warp can. When no warp can go on, a barrier at which enough threads wait lets
them go; when there is none, the threads wait for each other for ever, which is a fault.
"""

from __future__ import annotations

from outlast.server.drivers.emulated.runtime import (
    AT_BARRIER,
    AT_WARP,
    BARRIERS,
    FINISHED,
    ID_SHIFT,
    LINE_SHIFT,
    STATE_MASK,
    load_word,
)

#: What a block's deadlock ends with; on a GPU it would run until the watchdog comes.
DEADLOCK = 702  # LAUNCH_TIMEOUT

_STATE = f"""
define internal i32 @state_of(ptr %states, i32 %thread) alwaysinline {{
  %slot = getelementptr i32, ptr %states, i32 %thread
  %value = load i32, ptr %slot
  ret i32 %value
}}
define internal i1 @in_state(i32 %value, i32 %state) alwaysinline {{
  %low = and i32 %value, {STATE_MASK}
  %same = icmp eq i32 %low, %state
  ret i1 %same
}}
define internal void @resume_thread(ptr %handles, i32 %thread) {{
  %slot = getelementptr ptr, ptr %handles, i32 %thread
  %handle = load ptr, ptr %slot
  call void @llvm.coro.resume(ptr %handle)
  ret void
}}
"""

#: Which lanes of those that are here may go on; 0 if none may.
_PICK = f"""
define internal i32 @lanes_with(ptr %keys, i32 %t0, i32 %here, i64 %key) {{
entry:
  br label %lane
lane:
  %i = phi i32 [0, %entry], [%i.next, %lane]
  %group = phi i32 [0, %entry], [%group.next, %lane]
  %t = add i32 %t0, %i
  %slot = getelementptr i64, ptr %keys, i32 %t
  %other = load i64, ptr %slot
  %same = icmp eq i64 %other, %key
  %one = zext i1 %same to i32
  %bit = shl i32 %one, %i
  %mine = and i32 %bit, %here
  %group.next = or i32 %group, %mine
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, 32
  br i1 %more, label %lane, label %done
done:
  ret i32 %group.next
}}
define internal i32 @pick_group(ptr %w, i32 %t0, i32 %here, i32 %live) noinline {{
entry:
{load_word("keys")}
  br label %lane
lane:
  %i = phi i32 [0, %entry], [%i.next, %next]
  %loose = phi i64 [0, %entry], [%loose.next, %next]
  %shifted = lshr i32 %here, %i
  %bit = and i32 %shifted, 1
  %waits = icmp ne i32 %bit, 0
  br i1 %waits, label %look, label %next
look:
  %t = add i32 %t0, %i
  %slot = getelementptr i64, ptr %keys, i32 %t
  %key = load i64, ptr %slot
  %mask = trunc i64 %key to i32
  %named = icmp ne i32 %mask, 0
  br i1 %named, label %check, label %next
check:
  %group = call i32 @lanes_with(ptr %keys, i32 %t0, i32 %here, i64 %key)
  %others = xor i32 %group, -1
  %wanted = and i32 %mask, %live
  %missing = and i32 %wanted, %others
  %ready = icmp eq i32 %missing, 0
  br i1 %ready, label %found, label %next
next:
  %loose.next = phi i64 [%loose, %lane], [%key, %look], [%loose, %check]
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, 32
  br i1 %more, label %lane, label %rest
found:
  ret i32 %group
rest:
  %any = icmp ne i64 %loose.next, 0
  br i1 %any, label %together, label %none
together:
  %met = call i32 @lanes_with(ptr %keys, i32 %t0, i32 %here, i64 %loose.next)
  ret i32 %met
none:
  ret i32 0
}}
"""

#: Run a warp until its lanes have ended, wait at barriers, or wait for lanes that do.
_WARP = f"""
define internal void @run_warp(ptr %w, i32 %t0, i32 %t1) {{
entry:
{load_word("handles")}{load_word("states")}{load_word("outbox")}{load_word("inbox")}
{load_word("arrived")}{load_word("ballot")}{load_word("keys")}
  %warp = lshr i32 %t0, 5
  %arrived.slot = getelementptr i32, ptr %arrived, i32 %warp
  %ballot.slot = getelementptr i32, ptr %ballot, i32 %warp
  br label %scan
scan:                                   ; who waits, with which value and mask
  br label %lane
lane:
  %t = phi i32 [%t0, %scan], [%t.next, %next]
  %here = phi i32 [0, %scan], [%here.next, %next]
  %live = phi i32 [0, %scan], [%live.next, %next]
  %votes = phi i32 [0, %scan], [%votes.next, %next]
  %first = phi i64 [0, %scan], [%first.next, %next]
  %alike = phi i1 [true, %scan], [%alike.next, %next]
  %state = call i32 @state_of(ptr %states, i32 %t)
  %ended = call i1 @in_state(i32 %state, i32 {FINISHED})
  %waits = call i1 @in_state(i32 %state, i32 {AT_WARP})
  %lane.number = and i32 %t, 31
  %bit = shl i32 1, %lane.number
  %live.bit = select i1 %ended, i32 0, i32 %bit
  %live.next = or i32 %live, %live.bit
  br i1 %waits, label %collect, label %next
collect:
  %out.p = getelementptr i64, ptr %outbox, i32 %t
  %out = load i64, ptr %out.p
  %in.p = getelementptr i64, ptr %inbox, i32 %t
  store i64 %out, ptr %in.p
  %key.p = getelementptr i64, ptr %keys, i32 %t
  %key = load i64, ptr %key.p
  %fresh = icmp eq i32 %here, 0
  %reference = select i1 %fresh, i64 %key, i64 %first
  %same = icmp eq i64 %reference, %key
  %still = and i1 %alike, %same
  %here.more = or i32 %here, %bit
  %out32 = trunc i64 %out to i32
  %vote = and i32 %out32, 1
  %vote.bit = shl i32 %vote, %lane.number
  %votes.more = or i32 %votes, %vote.bit
  br label %next
next:
  %here.next = phi i32 [%here, %lane], [%here.more, %collect]
  %votes.next = phi i32 [%votes, %lane], [%votes.more, %collect]
  %first.next = phi i64 [%first, %lane], [%reference, %collect]
  %alike.next = phi i1 [%alike, %lane], [%still, %collect]
  %t.next = add i32 %t, 1
  %more = icmp ult i32 %t.next, %t1
  br i1 %more, label %lane, label %scanned
scanned:
  %nobody = icmp eq i32 %here.next, 0
  br i1 %nobody, label %done, label %judge
judge:                                  ; mostly all lanes of one mask are here
  %mask = trunc i64 %first.next to i32
  %named = icmp ne i32 %mask, 0
  %away = xor i32 %here.next, -1
  %wanted = and i32 %mask, %live.next
  %missing = and i32 %wanted, %away
  %complete = icmp eq i32 %missing, 0
  %usual.1 = and i1 %named, %alike.next
  %usual = and i1 %usual.1, %complete
  br i1 %usual, label %go, label %pick
pick:
  %picked = call i32 @pick_group(ptr %w, i32 %t0, i32 %here.next, i32 %live.next)
  %stuck = icmp eq i32 %picked, 0
  br i1 %stuck, label %done, label %go
go:
  %group = phi i32 [%here.next, %judge], [%picked, %pick]
  store i32 %group, ptr %arrived.slot
  %ballots = and i32 %votes.next, %group
  store i32 %ballots, ptr %ballot.slot
  br label %resume
resume:
  %r = phi i32 [%t0, %go], [%r.next, %resumed]
  %r.lane = and i32 %r, 31
  %r.mask = lshr i32 %group, %r.lane
  %r.bit = and i32 %r.mask, 1
  %r.on = icmp ne i32 %r.bit, 0
  br i1 %r.on, label %resume.one, label %resumed
resume.one:
  call void @resume_thread(ptr %handles, i32 %r)
  br label %resumed
resumed:
  %r.next = add i32 %r, 1
  %r.more = icmp ult i32 %r.next, %t1
  br i1 %r.more, label %resume, label %scan
done:
  ret void
}}
"""

#: Let the threads of one barrier go on. Gives -1 when it did, 0 when all threads have ended, else
#: the line at which one waits for ever.
_BARRIERS = f"""
define internal i32 @release_barrier(ptr %w, i32 %n) {{
entry:
{load_word("handles")}{load_word("states")}{load_word("outbox")}
  %waits = alloca [{BARRIERS} x i32]
  %weights = alloca [{BARRIERS} x i32]
  %trues = alloca [{BARRIERS} x i32]
  store [{BARRIERS} x i32] zeroinitializer, ptr %waits
  store [{BARRIERS} x i32] zeroinitializer, ptr %weights
  store [{BARRIERS} x i32] zeroinitializer, ptr %trues
  br label %thread
thread:                                 ; backwards, so that a warp ends with its lane 0
  %left = phi i32 [%n, %entry], [%t, %onward]
  %live = phi i32 [0, %entry], [%live.next, %onward]
  %gone = phi i32 [0, %entry], [%gone.next, %onward]
  %last = phi i32 [-1, %entry], [%last.next, %onward]
  %line = phi i32 [0, %entry], [%line.next, %onward]
  %t = sub i32 %left, 1
  %lane = and i32 %t, 31
  %top = icmp eq i32 %lane, 31
  %beyond = icmp eq i32 %left, %n
  %behind = sub i32 31, %lane
  %gone.1 = select i1 %top, i32 0, i32 %gone
  %gone.here = select i1 %beyond, i32 %behind, i32 %gone.1
  %last.here = select i1 %top, i32 -1, i32 %last
  %state = call i32 @state_of(ptr %states, i32 %t)
  %ended = call i1 @in_state(i32 %state, i32 {FINISHED})
  br i1 %ended, label %skip, label %alive
skip:
  %gone.more = add i32 %gone.here, 1
  br label %next
alive:
  %live.more = add i32 %live, 1
  %state.line = lshr i32 %state, {LINE_SHIFT}
  %barred = call i1 @in_state(i32 %state, i32 {AT_BARRIER})
  br i1 %barred, label %count, label %next
count:
  %shifted = lshr i32 %state, {ID_SHIFT}
  %number = and i32 %shifted, {BARRIERS - 1}
  %w.p = getelementptr i32, ptr %waits, i32 %number
  %w.old = load i32, ptr %w.p
  %w.new = add i32 %w.old, 1
  store i32 %w.new, ptr %w.p
  %g.p = getelementptr i32, ptr %weights, i32 %number
  %g.old = load i32, ptr %g.p
  %g.new = add i32 %g.old, 1
  store i32 %g.new, ptr %g.p
  %o.p = getelementptr i64, ptr %outbox, i32 %t
  %o = load i64, ptr %o.p
  %o.32 = trunc i64 %o to i32
  %o.bit = and i32 %o.32, 1
  %t.p = getelementptr i32, ptr %trues, i32 %number
  %t.old = load i32, ptr %t.p
  %t.new = add i32 %t.old, %o.bit
  store i32 %t.new, ptr %t.p
  br label %next
next:
  %live.next = phi i32 [%live, %skip], [%live.more, %alive], [%live.more, %count]
  %gone.next = phi i32 [%gone.more, %skip], [%gone.here, %alive], [%gone.here, %count]
  %last.next = phi i32 [%last.here, %skip], [%last.here, %alive], [%number, %count]
  %line.next = phi i32 [%line, %skip], [%state.line, %alive], [%state.line, %count]
  %front = icmp eq i32 %lane, 0
  %some = icmp sge i32 %last.next, 0
  %settle.now = and i1 %front, %some
  br i1 %settle.now, label %settle, label %onward
settle:           ; barriers count whole warps: lanes that have ended count with the others
  %s.p = getelementptr i32, ptr %weights, i32 %last.next
  %s.old = load i32, ptr %s.p
  %s.new = add i32 %s.old, %gone.next
  store i32 %s.new, ptr %s.p
  br label %onward
onward:
  %more = icmp ne i32 %t, 0
  br i1 %more, label %thread, label %counted
counted:
  %over = icmp eq i32 %live.next, 0
  br i1 %over, label %all.ended, label %barrier
barrier:
  %b = phi i32 [0, %counted], [%b.next, %not.yet]
  %here.p = getelementptr i32, ptr %waits, i32 %b
  %here = load i32, ptr %here.p
  %anyone = icmp ne i32 %here, 0
  br i1 %anyone, label %weigh, label %not.yet
weigh:
  %needed = call i32 @barrier_word(ptr %w, i32 0, i32 %b)
  %arrived = call i32 @barrier_word(ptr %w, i32 1, i32 %b)
  %weight.p = getelementptr i32, ptr %weights, i32 %b
  %weight = load i32, ptr %weight.p
  %total = add i32 %weight, %arrived
  %whole = icmp eq i32 %needed, 0
  %all.here = icmp eq i32 %here, %live.next
  %enough = icmp uge i32 %total, %needed
  %open = select i1 %whole, i1 %all.here, i1 %enough
  br i1 %open, label %release, label %not.yet
not.yet:
  %b.next = add i32 %b, 1
  %b.more = icmp ult i32 %b.next, {BARRIERS}
  br i1 %b.more, label %barrier, label %stuck
release:
  %arrived.p = call ptr @barrier_slot(ptr %w, i32 1, i32 %b)
  store i32 0, ptr %arrived.p
  %true.p = getelementptr i32, ptr %trues, i32 %b
  %true = load i32, ptr %true.p
  %true.slot = call ptr @barrier_slot(ptr %w, i32 2, i32 %b)
  store i32 %true, ptr %true.slot
  %total.slot = call ptr @barrier_slot(ptr %w, i32 3, i32 %b)
  store i32 %here, ptr %total.slot
  br label %free
free:
  %f = phi i32 [0, %release], [%f.next, %freed]
  %f.state = call i32 @state_of(ptr %states, i32 %f)
  %f.low = and i32 %f.state, {(1 << LINE_SHIFT) - 1}
  %b.shifted = shl i32 %b, {ID_SHIFT}
  %b.state = or i32 %b.shifted, {AT_BARRIER}
  %f.here = icmp eq i32 %f.low, %b.state
  br i1 %f.here, label %free.one, label %freed
free.one:
  call void @resume_thread(ptr %handles, i32 %f)
  br label %freed
freed:
  %f.next = add i32 %f, 1
  %f.more = icmp ult i32 %f.next, %n
  br i1 %f.more, label %free, label %released
released:
  ret i32 -1
stuck:
  ret i32 %line.next
all.ended:
  ret i32 0
}}
"""

SCHEDULER = f"""
{_STATE}{_PICK}{_WARP}{_BARRIERS}
define internal void @run_block(ptr %w, i32 %n) noinline {{
entry:
  br label %round
round:
  br label %warp
warp:
  %t0 = phi i32 [0, %round], [%t0.next, %warp]
  %t0.next = add i32 %t0, 32
  %full = icmp ult i32 %t0.next, %n
  %t1 = select i1 %full, i32 %t0.next, i32 %n
  call void @run_warp(ptr %w, i32 %t0, i32 %t1)
  br i1 %full, label %warp, label %barriers
barriers:
  %line = call i32 @release_barrier(ptr %w, i32 %n)
  %released = icmp eq i32 %line, -1
  br i1 %released, label %round, label %rest
rest:
  %ended = icmp eq i32 %line, 0
  br i1 %ended, label %done, label %deadlock
deadlock:
  call void @record_fault(ptr %w, i64 {DEADLOCK}, i64 0, i32 %line)
  br label %done
done:
  ret void
}}
"""
