"""The arena against a strict model of a device, with work that ends early or late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.arena import KEPT, Arena
from outlast.server.drivers.emulated.vmm_calls import VmmCalls
from outlast.server.drivers.placement import CHUNK, GRANULE

MIB = 1 << 20
BASE, SIZE = 1 << 44, 16 << 30
SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 400).map(lambda n: n * MIB),
    st.sampled_from([20 * MIB, 40 * MIB, 300 * MIB]),
)
#: Free one of the live allocations, or allocate; then so much more work is done.
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10_000)), max_size=60)
Steps = list[tuple[bool, int, int]]


STREAMS = 3


@dataclass(frozen=True)
class Mark:
    """A place in a stream."""

    number: int
    stream: int


class Fences:
    """Work of several streams. A fence has the number of its newest mark; 0 if all is done."""

    def __init__(self) -> None:
        self.number = 0
        self.newest: dict[int, Mark] = {}
        #: How far each stream is.
        self.completed = [0] * STREAMS
        self.named: dict[int, frozenset[Mark]] = {0: frozenset()}
        #: How far into each stream all later work is ordered behind it.
        self.ordered = [0] * STREAMS
        #: What the arena may not touch before work is done: start -> end and marks.
        self.busy: dict[int, tuple[int, frozenset[Mark]]] = {}

    def issue(self, stream: int) -> None:
        """Issue work."""
        self.number += 4
        self.newest[stream] = Mark(self.number, stream)

    def run(self, stream: int, number: int) -> None:
        """Do a stream's work up to a number."""
        self.completed[stream] = max(self.completed[stream], number)

    def passed(self, mark: Mark) -> bool:
        return mark.number <= self.completed[mark.stream]

    def open(self) -> frozenset[Mark]:
        """Return the marks of all work that is not done."""
        return frozenset(m for m in self.newest.values() if not self.passed(m))

    def fence(self) -> int:
        marks = self.open()
        fence = max((mark.number for mark in marks), default=0)
        self.named.setdefault(fence, marks)
        return fence

    def done(self, fence: int) -> bool:
        return all(map(self.passed, self.named[fence]))

    def wait(self, fence: int, timeout: float) -> bool:
        for mark in self.named[fence]:
            self.run(mark.stream, mark.number)
        return True

    def order_after(self, fence: int) -> None:
        assert not self.done(fence)
        for mark in self.named[fence]:
            if not self.passed(mark):
                self.ordered[mark.stream] = max(self.ordered[mark.stream], mark.number)

    def free(self, start: int, end: int) -> None:
        """Note that all work so far may use a range."""
        self.busy[start] = end, self.open()

    def users(self, start: int, end: int) -> set[Mark]:
        """Return the pending work that may use a range."""
        over = [marks for a, (b, marks) in self.busy.items() if a < end and start < b]
        return {mark for marks in over for mark in marks if not self.passed(mark)}

    def idle(self) -> None:
        """Do all work."""
        self.completed = [self.number] * STREAMS


class Device(VmmCalls):
    """Memory that may be mapped once, and unmapped only when no pending work uses it."""

    def __init__(self, memory: int, fences: Fences) -> None:
        self.free, self.fences = memory, fences
        self.handles: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.usable: set[int] = set()
        self.reserved = False

    def cuDeviceGetAttribute(self, attrib: Any, dev: Any) -> Any:
        return 0, 1

    def cuMemGetAllocationGranularity(self, prop: Any, option: Any) -> Any:
        assert prop.allocFlags.gpuDirectRDMACapable == 1
        return 0, GRANULE

    def cuMemAddressReserve(self, size: Any, alignment: Any, addr: Any, flags: Any) -> Any:
        self.reserved = True
        return 0, addr

    def cuMemAddressFree(self, ptr: Any, size: Any) -> Any:
        assert (ptr, size, self.mapped) == (BASE, SIZE, {})
        self.reserved = False
        return (0,)

    def cuMemCreate(self, size: Any, prop: Any, flags: Any) -> Any:
        if size > self.free:
            return 2, None
        self.free -= size
        handle = max(self.handles, default=0) + 1
        self.handles[handle] = size
        return 0, handle

    def cuMemRelease(self, handle: Any) -> Any:
        self.free += self.handles.pop(handle)
        return (0,)

    def cuMemMap(self, ptr: Any, size: Any, offset: Any, handle: Any, flags: Any) -> Any:
        assert self.handles[handle] == size
        assert ptr % GRANULE == size % GRANULE == 0
        assert BASE <= ptr <= BASE + SIZE - size
        assert all(a >= ptr + size or a + n <= ptr for a, n in self.mapped.items())
        self.mapped[ptr] = size
        return (0,)

    def cuMemUnmap(self, ptr: Any, size: Any) -> Any:
        assert self.mapped.pop(ptr) == size
        assert not self.fences.users(ptr, ptr + size)
        self.usable.discard(ptr)
        return (0,)

    def cuMemSetAccess(self, ptr: Any, size: Any, desc: Any, count: Any) -> Any:
        assert self.mapped[ptr] == size
        assert [access.flags for access in desc] == [3] * count
        self.usable.add(ptr)
        return (0,)

    def backs(self, start: int, end: int) -> bool:
        """Return whether every byte of a range is mapped and usable."""
        while start < end:
            chunk = max((a for a in self.usable if a <= start), default=None)
            if chunk is None or chunk + self.mapped[chunk] <= start:
                return False
            start = chunk + self.mapped[chunk]
        return True


class Program:
    """Allocates and frees; work may be pending on what it frees."""

    def __init__(self, memory: int) -> None:
        self.fences = Fences()
        self.device = Device(memory, self.fences)
        self.arena = Arena(self.device, 0, base=BASE, size=SIZE, fences=self.fences)
        self.live: dict[int, int] = {}

    def allocate(self, size: int) -> tuple[int, int]:
        before = list(self.fences.ordered)
        code, address = self.arena.allocate(size)
        if code:
            return code, address
        end = address + size
        assert all(end <= a or a + n <= address for a, n in self.live.items())
        assert self.device.backs(address, end)
        # It is ordered behind whatever uses the range, and behind nothing more.
        for mark in self.fences.users(address, end):
            before[mark.stream] = max(before[mark.stream], mark.number)
        assert self.fences.ordered == before
        self.live[address] = size
        return code, address

    def free(self, choice: int) -> None:
        address = list(self.live)[choice % len(self.live)]
        end = address + self.live.pop(address)
        if choice % 2:
            self.fences.issue(choice // 2 % STREAMS)
        self.fences.free(address, end)
        assert self.arena.release(address) == 0

    def run(self, steps: Steps, lag: int) -> list[tuple[int, int]]:
        """Do the steps; each stream is ``lag`` pieces of work behind the one before it."""
        outcomes = []
        for free, size, choice in steps:
            if free and self.live:
                self.free(choice)
            else:
                outcomes.append(self.allocate(size))
            for stream in range(STREAMS):
                self.fences.run(stream, self.fences.number - 4 * lag * stream)
            self.check()
        return outcomes

    def check(self) -> None:
        """The books are right."""
        assert self.arena.mapped == sum(self.device.mapped.values())
        assert self.arena.mapped == sum(self.device.handles.values())
        used = sum(
            size
            for chunk, size in self.device.mapped.items()
            if any(a < chunk + size and chunk < a + n for a, n in self.live.items())
        )
        assert self.arena.reclaimable == self.arena.mapped - used
        assert [tuple(block) for block in self.arena.allocations()] == sorted(self.live.items())

    def end(self, memory: int) -> None:
        while self.live:
            self.free(0)
        self.fences.idle()
        self.arena.trim()
        assert self.arena.reclaimable <= KEPT
        self.arena.reclaim()
        assert self.device.free == memory
        self.arena.close()
        assert not self.device.reserved


@given(STEPS, st.integers(1, 30))
def test_addresses_do_not_depend_on_when_work_ends(steps: Steps, lag: int) -> None:
    memory = 1 << 50
    prompt, late = Program(memory), Program(memory)
    assert prompt.run(steps, 0) == late.run(steps, lag)
    assert not any(prompt.fences.ordered)
    for program in (prompt, late):
        program.end(memory)


@given(STEPS, st.integers(0, 30), st.integers(2, 20))
def test_no_memory_is_lost_or_taken_from_work_when_it_is_scarce(
    steps: Steps, lag: int, chunks: int
) -> None:
    memory = chunks * CHUNK
    program = Program(memory)
    for code, address in program.run(steps, lag):
        assert (code, bool(address)) in ((0, True), (2, False))
    program.end(memory)


@given(STEPS, st.integers(0, 30))
def test_what_is_called_free_can_be_had_in_one_piece(steps: Steps, lag: int) -> None:
    program = Program(20 * CHUNK)
    program.run(steps, lag)
    free = (program.device.free + program.arena.reclaimable) // GRANULE * GRANULE
    if free >= CHUNK:
        assert program.allocate(free)[0] == 0
