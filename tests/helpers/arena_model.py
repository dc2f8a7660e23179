"""A strict model of a device's memory and of the work on its streams, for tests of the arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.server.drivers.emulated.vmm_calls import VmmCalls
from outlast.server.drivers.placement import GRANULE

MIB = 1 << 20
BASE, SIZE = 1 << 44, 16 << 30
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
