"""The arena against a strict model of a device, with work that ends early or late."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass
class Fences:
    """Work that is done up to ``completed``; every fence names one piece more."""

    issued: int = 0
    completed: int = 0
    ordered: int = 0
    #: What the arena may not touch before this fence is done: start -> end and fence.
    busy: dict[int, tuple[int, int]] = field(default_factory=dict)

    def fence(self) -> int:
        self.issued += 1
        return self.issued

    def done(self, fence: int) -> bool:
        return fence <= self.completed

    def wait(self, fence: int, timeout: float) -> bool:
        self.completed = max(self.completed, fence)
        return True

    def order_after(self, fence: int) -> None:
        assert fence > self.completed
        self.ordered = max(self.ordered, fence)

    def unfinished(self, start: int, end: int) -> int:
        """Return the newest fence of pending work that uses a range; 0 if there is none."""
        over = [f for a, (b, f) in self.busy.items() if a < end and start < b]
        return max((f for f in over if not self.done(f)), default=0)


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
        assert not self.fences.unfinished(ptr, ptr + size)
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
    """Allocates and frees, with work pending on all that it frees."""

    def __init__(self, memory: int) -> None:
        self.fences = Fences()
        self.device = Device(memory, self.fences)
        self.arena = Arena(self.device, 0, base=BASE, size=SIZE, fences=self.fences)
        self.live: dict[int, int] = {}

    def allocate(self, size: int) -> tuple[int, int]:
        before = self.fences.ordered
        code, address = self.arena.allocate(size)
        if code:
            return code, address
        end = address + size
        assert all(end <= a or a + n <= address for a, n in self.live.items())
        assert self.device.backs(address, end)
        assert self.fences.ordered == max(before, self.fences.unfinished(address, end))
        self.live[address] = size
        return code, address

    def free(self, choice: int) -> None:
        address = list(self.live)[choice % len(self.live)]
        end = address + self.live.pop(address)
        assert self.arena.release(address) == 0
        self.fences.busy[address] = end, self.fences.issued

    def run(self, steps: Steps, lag: int) -> list[tuple[int, int]]:
        """Do the steps; the device is ``lag`` pieces of work behind."""
        outcomes = []
        for free, size, choice in steps:
            if free and self.live:
                self.free(choice)
            else:
                outcomes.append(self.allocate(size))
            self.fences.completed = max(self.fences.completed, self.fences.issued - lag)
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
        self.fences.completed = self.fences.issued
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
    assert prompt.fences.ordered == 0
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
