"""The arena with memory in the order of streams, against a model of what runs behind what."""

from __future__ import annotations

from dataclasses import dataclass, field

from helpers.arena_model import BASE, MIB, SIZE, STREAMS, Device, Fences, Mark
from hypothesis import given
from hypothesis import strategies as st

from outlast.server.drivers.arena import Arena
from outlast.server.drivers.placement import CHUNK

SIZES = st.one_of(
    st.integers(1, 5000), st.integers(1, 90).map(lambda n: n * MIB), st.just(40 * MIB)
)
#: What to do, with how much, and a number to choose by.
STEPS = st.lists(st.tuples(st.integers(0, 5), SIZES, st.integers(0, 10_000)), max_size=60)
Steps = list[tuple[int, int, int]]


class OrderedFences(Fences):
    """Streams of which each place knows how far into the others it is behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = [[0] * STREAMS for _ in range(STREAMS)]
        #: What all work issued from now on is behind.
        self.floor = [0] * STREAMS
        self.behind: dict[int, list[int]] = {}
        self.freed: list[tuple[int, int, set[Mark]]] = []

    def issue(self, stream: int) -> None:
        super().issue(stream)
        clock = self.clocks[stream]
        clock[:] = map(max, clock, self.floor)
        clock[stream] = self.number
        self.behind[self.number] = list(clock)

    def use(self, stream: int, start: int, end: int) -> Mark:
        """Issue work that uses a range: nobody else may still do."""
        self.issue(stream)
        clock = self.behind[self.number]
        assert all(mark.number <= clock[mark.stream] for mark in self.users(start, end))
        return self.newest[stream]

    def follow(self, stream: int, mark: Mark) -> None:
        """Let later work of a stream run behind a place."""
        self.clocks[stream][:] = map(max, self.clocks[stream], self.behind[mark.number])
        self.issue(stream)

    def passed(self, mark: Mark) -> bool:
        return all(a <= b for a, b in zip(self.behind[mark.number], self.completed, strict=True))

    def wait(self, fence: int, timeout: float) -> bool:
        for mark in self.named[fence]:
            self.completed[:] = map(max, self.completed, self.behind[mark.number])
        return True

    def order_after(self, fence: int) -> None:
        for mark in self.named[fence]:
            if not self.passed(mark):
                self.floor[:] = map(max, self.floor, self.behind[mark.number])

    def users(self, start: int, end: int) -> set[Mark]:
        over = [marks for a, b, marks in self.freed if a < end and start < b]
        return {mark for marks in over for mark in marks if not self.passed(mark)}


@dataclass(frozen=True)
class StreamLane:
    """A stream as the arena sees it."""

    fences: OrderedFences = field(compare=False)
    stream: int

    def fence(self) -> int:
        mark = self.fences.newest.get(self.stream)
        if mark is None or self.fences.passed(mark):
            return 0
        self.fences.named[mark.number + 1] = frozenset([mark])
        return mark.number + 1

    def follow(self, fence: int) -> None:
        for mark in self.fences.named[fence]:
            if not self.fences.passed(mark):
                self.fences.follow(self.stream, mark)


@dataclass
class Owned:
    """A live allocation."""

    size: int
    #: None if any stream may use it at once.
    stream: int | None
    uses: set[Mark] = field(default_factory=set)


class Program:
    """Allocates, uses and frees, mostly in streams, as CUDA demands it of a program."""

    def __init__(self, memory: int) -> None:
        self.fences = OrderedFences()
        self.device = Device(memory, self.fences)
        self.arena = Arena(self.device, 0, base=BASE, size=SIZE, fences=self.fences)
        self.live: dict[int, Owned] = {}

    def allocate(self, size: int, stream: int | None) -> tuple[int, int]:
        lane = None if stream is None else StreamLane(self.fences, stream)
        code, address = self.arena.allocate(size, lane=lane)
        if not code:
            self.live[address] = Owned(size, stream)
            self.use(address, 0)
        return code, address

    def use(self, address: int, choice: int) -> None:
        block = self.live[address]
        stream = choice % STREAMS if block.stream is None else block.stream
        block.uses.add(self.fences.use(stream, address, address + block.size))

    def free(self, address: int, stream: int | None) -> None:
        block = self.live.pop(address)
        if stream is not None:
            # Or it would be no free behind all uses.
            for mark in block.uses:
                if mark.stream != stream:
                    self.fences.follow(stream, mark)
        self.fences.freed.append((address, address + block.size, block.uses))
        lane = None if stream is None else StreamLane(self.fences, stream)
        assert self.arena.release(address, lane) == 0

    def run(self, steps: Steps, lag: int) -> list[tuple[int, int]]:
        """Do the steps; each stream is ``lag`` pieces of work behind the one before it."""
        outcomes = []
        for kind, size, choice in steps:
            stream = choice % (STREAMS + 1)
            where = None if stream == STREAMS else stream
            if kind < 2 or not self.live:
                outcomes.append(self.allocate(size, where))
            else:
                address = sorted(self.live)[choice // 7 % len(self.live)]
                if kind == 2:
                    self.use(address, choice)
                else:
                    self.free(address, where)
            for number in range(STREAMS):
                self.fences.run(number, self.fences.number - 4 * lag * number)
        return outcomes

    def end(self, memory: int) -> None:
        while self.live:
            self.free(next(iter(self.live)), 1)
        self.fences.idle()
        self.arena.reclaim()
        assert self.device.free == memory
        self.arena.close()


@given(STEPS, st.integers(1, 30))
def test_nobody_meets_another_ones_work_and_addresses_depend_on_the_calls_alone(
    steps: Steps, lag: int
) -> None:
    memory = 1 << 50
    prompt, late = Program(memory), Program(memory)
    assert prompt.run(steps, 0) == late.run(steps, lag)
    for program in (prompt, late):
        program.end(memory)


@given(STEPS, st.integers(0, 30), st.integers(2, 20))
def test_memory_of_streams_is_not_unmapped_under_their_work_when_it_is_scarce(
    steps: Steps, lag: int, chunks: int
) -> None:
    memory = chunks * CHUNK
    program = Program(memory)
    for code, address in program.run(steps, lag):
        assert (code, bool(address)) in ((0, True), (2, False))
    program.end(memory)


def test_a_stream_gets_its_own_memory_back_without_a_wait_and_others_behind_it_alone() -> None:
    program = Program(1 << 50)
    fences = program.fences
    _, address = program.allocate(4096, 0)
    fences.issue(1)
    program.free(address, 0)
    issued = fences.number
    assert program.arena.allocate(4096, lane=StreamLane(fences, 0)) == (0, address)
    assert fences.number == issued, "the stream was made to wait"
    assert program.arena.release(address, StreamLane(fences, 0)) == 0
    assert program.arena.allocate(4096, lane=StreamLane(fences, 2)) == (0, address)
    assert fences.clocks[2][:2] == [fences.newest[0].number, 0]
    assert not any(fences.floor), "streams that have nothing to do with it were made to wait"


def test_plain_memory_waits_for_the_stream_that_freed_it_whoever_uses_it() -> None:
    program = Program(1 << 50)
    fences = program.fences
    _, address = program.allocate(4096, 0)
    program.free(address, 0)
    assert program.arena.allocate(4096) == (0, address)
    assert fences.floor == [fences.newest[0].number, 0, 0]
