"""Device memory at addresses of our choice: one reserved range, physical chunks mapped into it.

`Placement` chooses the addresses; the arena puts memory behind them with CUDA's calls for
virtual memory. A freed range is given out again at once, but the work issued from then on is
ordered behind the work before the free, on the device: nothing here waits for it. Memory is
unmapped only when that work is done, because unmapping waits for nothing and would pull
it away from a running kernel.

What is allocated or freed in the order of a stream knows nothing of other streams: a range is
given out again in the stream that freed it with no wait at all, and whoever else gets it waits
for that stream alone. Its address is chosen as any other.

Chunks in which nothing lives stay mapped for the next allocation, up to `KEPT` bytes; they count
as free, and all of them are given up before an allocation fails for want of memory.

CUDA clears physical memory before a process gets it, so no session sees another's data.
A range that is given out again within a session holds what it held, as with `cuMemAlloc`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.server.drivers.freed import FreedRanges
from outlast.server.drivers.lanes import Lane, LaneRange, LaneRanges
from outlast.server.drivers.physical import PhysicalMemory, Piece
from outlast.server.drivers.placement import Block, Chunk, Placement

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
#: Bytes of empty chunks that stay mapped when there is no need for their memory.
KEPT = 256 << 20
#: How long an allocation that finds no memory waits for the work behind freed memory.
PATIENCE = 10.0  # seconds


class Fences(Protocol):
    """What an arena must know of the work on its device."""

    def fence(self) -> int:
        """Name all work issued so far, on all streams; the same number while nothing is issued.

        0 if all of it is done. Otherwise numbers grow and are done in their order; one that
        is smaller than a former one names nothing that the former one does not.
        """

    def done(self, fence: int) -> bool:
        """Return whether that work is done."""

    def wait(self, fence: int, timeout: float) -> bool:
        """Block until that work is done; False after ``timeout`` seconds."""

    def order_after(self, fence: int) -> None:
        """Let all that is issued from now on, on any stream, run after that work."""


@dataclass(slots=True)
class Mapped:
    """A chunk with physical memory behind it."""

    chunk: Chunk
    memory: Piece
    #: Behind it nothing uses the chunk, while it is empty.
    fence: int = 0


class Arena:
    """The memory of one device in one process. Its primary context must be current.

    Parameters
    ----------
    cuda
        Has what is used here of `cuda.bindings.driver`, by its names.
    device
        The device's ordinal.
    base, size
        The range of addresses, in bytes.
    fences
        Knows the work on the device.
    patience
        Seconds that an allocation waits for freed memory before it fails.
    on_unmap
        Told of each chunk that is about to be unmapped.

    Raises
    ------
    RestoreFailed
        The range cannot be had in this process.
    ConfigError
        The range or the device does not suit.
    """

    def __init__(
        self,
        cuda: Any,
        device: int,
        *,
        base: int,
        size: int,
        fences: Fences,
        patience: float = PATIENCE,
        on_unmap: Callable[[Chunk], None] = lambda chunk: None,
    ) -> None:
        self._fences, self._patience, self._on_unmap = fences, patience, on_unmap
        self._placement = Placement(base, size)
        self._memory = PhysicalMemory(cuda, device)
        self._mapped: dict[int, Mapped] = {}
        #: Those in which nothing lives, the first to be given up first.
        self._empty: OrderedDict[int, Mapped] = OrderedDict()
        self._reclaimable = 0
        self._freed = FreedRanges()
        self._freed_in_lanes = LaneRanges()
        self._newest = 0
        self._memory.reserve(base, size)

    # -- allocations ---------------------------------------------------------

    def allocate(
        self, size: int, at: int | None = None, lane: Lane | None = None
    ) -> tuple[int, int]:
        """Allocate memory, where the placement says or exactly ``at``.

        With a ``lane`` it may be used in that stream, and behind it in others.

        Returns
        -------
        tuple[int, int]
            A ``CUresult`` value and the address; 2 and 0 if there is no such memory.
        """
        code, address = self._allocate(size, at, lane)
        if self._reclaimable > KEPT:
            self.trim()
        return code, address

    def _allocate(self, size: int, at: int | None, lane: Lane | None = None) -> tuple[int, int]:
        if size <= 0:
            return INVALID_VALUE, 0
        placement = self._placement
        address = at
        if address is None:
            address = placement.place(size)
        elif not placement.place_at(address, size):
            address = None
        if address is None:
            return OUT_OF_MEMORY, 0
        code = self._back(placement.chunks(address))
        if code:
            placement.remove(address, rest=False)
            return code, 0
        end = placement.end_of(address)
        if self._freed:
            self._follow(address, end)
        if self._freed_in_lanes:
            self._follow_lanes(address, end, lane)
        return SUCCESS, address

    def release(self, address: int, lane: Lane | None = None) -> int:
        """Free an allocation; it never waits. Returns a ``CUresult`` value.

        With a ``lane`` nothing uses it any more behind what was issued in that stream so far.
        """
        placement = self._placement
        if not placement.starts(address):
            return INVALID_VALUE
        end = placement.end_of(address)
        if lane is None:
            fence = self._fence()
            self._freed.settle(self._fences.done)
            if fence:
                self._freed.add(address, end, fence)
            chunks = placement.remove(address)
        else:
            mine = lane.fence()
            self._freed_in_lanes.settle(self._fences.done)
            if mine:
                self._freed_in_lanes.add(LaneRange(address, end, lane, mine))
            chunks = placement.remove(address)
            # Other streams may still use what lay beside it.
            fence = self._fence() if chunks else 0
        for chunk in chunks:
            self._set_empty(self._mapped[chunk.address], fence)
        if self._reclaimable > KEPT:
            self.trim()
        return SUCCESS

    def _fence(self) -> int:
        """Name all work so far by a number that is no smaller than those before; 0 for none."""
        fence = self._fences.fence()
        if fence:
            fence = self._newest = max(fence, self._newest)
        return fence

    def find(self, address: int) -> Block | None:
        """Return the live allocation that holds ``address``."""
        return self._placement.find(address)

    def allocations(self) -> list[Block]:
        """Return every live allocation, by address."""
        return self._placement.blocks()

    def _follow(self, start: int, end: int) -> None:
        """Order what is issued from now on behind the work that may still use a range."""
        self._freed.settle(self._fences.done)
        fence = self._freed.fence(start, end)
        if fence:
            self._fences.order_after(fence)
            # All that is issued now follows the older fences too.
            self._freed.settle(lambda other: other <= fence)

    def _follow_lanes(self, start: int, end: int, lane: Lane | None) -> None:
        """Order what may use a range from now on behind the streams that freed parts of it."""
        for freed in self._freed_in_lanes.take(start, end):
            if freed.lane == lane or self._fences.done(freed.fence):
                continue
            if lane is None:
                self._fences.order_after(freed.fence)
            else:
                lane.follow(freed.fence)

    # -- physical memory -----------------------------------------------------

    @property
    def reclaimable(self) -> int:
        """Bytes of mapped chunks in which nothing lives: free memory."""
        return self._reclaimable

    @property
    def mapped(self) -> int:
        """Bytes of physical memory that are mapped."""
        return sum(mapped.chunk.size for mapped in self._mapped.values())

    def trim(self) -> None:
        """Give up empty chunks beyond `KEPT` bytes as far as their work is done; never waits."""
        while self._reclaimable > KEPT:
            first = next(iter(self._empty.values()))
            if not self._fences.done(first.fence):
                return
            self._unmap(first)

    def reclaim(self) -> None:
        """Give up all empty chunks, waiting a while for the work that may still use them."""
        if not self._empty:
            return
        fence = max(mapped.fence for mapped in self._empty.values())
        self._fences.wait(fence, self._patience)
        self._reclaim_done()

    def admit(self, device: int) -> int:
        """Let another device use this memory, also what is mapped later.

        Returns
        -------
        int
            A ``CUresult`` value; after a failure the device may use none of it.
        """
        chunks = [mapped.chunk for mapped in self._mapped.values()]
        return self._memory.admit(device, chunks)

    def expel(self, device: int) -> int:
        """Let another device use this memory no more; nothing may be using it there."""
        return self._memory.expel(device, [mapped.chunk for mapped in self._mapped.values()])

    def chunks(self) -> list[Chunk]:
        """Return the chunks in which something lives, by address."""
        mapped = self._mapped.values()
        return sorted(m.chunk for m in mapped if m.chunk.address not in self._empty)

    def share(self, chunk: Chunk) -> tuple[int, int]:
        """Return a ``CUresult`` value and a descriptor of a chunk's memory.

        The descriptor is the caller's. As long as any process has it the memory and its
        contents stay, even when this process dies.
        """
        return self._memory.share(self._mapped[chunk.address].memory)

    def adopt(self, blocks: Iterable[Block], descriptors: Mapping[Chunk, int]) -> int:
        """Take over shared memory and what lives in it, at the same addresses.

        Parameters
        ----------
        blocks
            The live allocations.
        descriptors
            A descriptor of each chunk in which they lie; they stay the caller's.

        Returns
        -------
        int
            A ``CUresult`` value. After a failure the arena is good for nothing but `close`.
        """
        for chunk, descriptor in descriptors.items():
            code, piece = self._memory.take(chunk, descriptor)
            if code:
                return code
            self._note(chunk, piece)
        for address, size in blocks:
            code = self._allocate(size, address)[0]
            if code:
                return code
            if not descriptors.keys() >= set(self._placement.chunks(address)):
                return INVALID_VALUE
        return SUCCESS

    def close(self) -> None:
        """Give memory and addresses back; the device must be idle."""
        for mapped in list(self._mapped.values()):
            if mapped.chunk.address not in self._empty:
                self._set_empty(mapped, 0)
            self._unmap(mapped)
        base, end = self._placement.base, self._placement.end
        self._memory.unreserve(base, end - base)

    def _back(self, chunks: list[Chunk]) -> int:
        """Put memory behind chunks, all or none. Returns a ``CUresult`` value."""
        taken: list[Mapped] = []
        for chunk in chunks:
            mapped = self._mapped.get(chunk.address)
            if mapped is None or mapped.chunk != chunk:
                code = self._make_room(chunk) or self._map(chunk)
                if code:
                    for other in taken:
                        self._set_empty(other, other.fence)
                    return code
                mapped = self._mapped[chunk.address]
            if self._empty.pop(chunk.address, None) is not None:
                self._reclaimable -= chunk.size
                taken.append(mapped)
        return SUCCESS

    def _make_room(self, chunk: Chunk) -> int:
        """Unmap what lies where a chunk has to be: others that were freed a moment ago."""
        for other in [m for m in self._empty.values() if m.chunk.overlaps(chunk)]:
            if not self._fences.wait(other.fence, self._patience):
                return OUT_OF_MEMORY
            self._unmap(other)
        return SUCCESS

    def _map(self, chunk: Chunk) -> int:
        """Map fresh memory; before there is none, give up what is free here."""
        code, piece = self._memory.map(chunk)
        for give_up in (self._reclaim_done, self.reclaim):
            if code != OUT_OF_MEMORY or not self._empty:
                break
            give_up()
            code, piece = self._memory.map(chunk)
        if not code:
            self._note(chunk, piece)
        return code

    def _note(self, chunk: Chunk, piece: Piece) -> None:
        """Note a mapped chunk; it is empty until somebody takes it."""
        mapped = self._mapped[chunk.address] = Mapped(chunk, piece)
        self._set_empty(mapped, 0)

    def _reclaim_done(self) -> None:
        for mapped in list(self._empty.values()):
            if self._fences.done(mapped.fence):
                self._unmap(mapped)

    def _set_empty(self, mapped: Mapped, fence: int) -> None:
        mapped.fence = fence
        self._empty[mapped.chunk.address] = mapped
        self._reclaimable += mapped.chunk.size
        if mapped.chunk.size > KEPT:
            self._empty.move_to_end(mapped.chunk.address, last=False)

    def _unmap(self, mapped: Mapped) -> None:
        """Give up an empty chunk."""
        chunk = mapped.chunk
        del self._mapped[chunk.address], self._empty[chunk.address]
        self._reclaimable -= chunk.size
        self._on_unmap(chunk)
        self._memory.unmap(chunk, mapped.memory)
