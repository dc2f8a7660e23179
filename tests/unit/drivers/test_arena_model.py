"""The arena against a strict model of a device, with work that ends early or late."""

from __future__ import annotations

from helpers.arena_model import BASE, MIB, SIZE, STREAMS, Device, Fences
from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.arena import KEPT, Arena
from outlast.server.drivers.placement import CHUNK, GRANULE

SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 400).map(lambda n: n * MIB),
    st.sampled_from([20 * MIB, 40 * MIB, 300 * MIB]),
)
#: Free one of the live allocations, or allocate; then so much more work is done.
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10_000)), max_size=60)
Steps = list[tuple[bool, int, int]]


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
