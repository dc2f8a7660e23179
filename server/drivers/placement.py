"""Where allocations go in a device's address range: pure policy, no device.

The lower half is the pool: physical chunks of 32 MiB that small allocations share, packed from
the lowest address on and across chunk borders. The upper half gives every large allocation a
chunk of its own size, so that it can be given up whole when the allocation is freed.

An address depends on the order of allocations and frees alone, never on what the device has
finished meanwhile, so a replay gets it again. To need no wait for the device, a freed large
range rests: for a while only an allocation of the same size takes it again, together
with its chunk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from outlast.errors import ConfigError
from outlast.server.drivers.first_fit import FirstFit

GRANULE = 2 << 20  # bytes; chunks begin and end at its multiples
CHUNK = 32 << 20  # bytes of a pool chunk
LARGE = 32 << 20  # bytes; from here on an allocation has a chunk of its own
ALIGNMENT = 512  # bytes; what CUDA's allocations begin at
#: Freed large ranges that rest at most.
RESTING = 16


class Block(NamedTuple):
    """A live allocation."""

    address: int
    #: Bytes asked for.
    size: int


class Chunk(NamedTuple):
    """A range that has physical memory of its own while something lives in it."""

    address: int
    size: int  # bytes

    def overlaps(self, other: Chunk) -> bool:
        """Return whether the two have an address in common."""
        return (
            self.address < other.address + other.size and other.address < self.address + self.size
        )


class Placement:
    """Addresses of the allocations in ``[base, base + size)``.

    Raises
    ------
    ConfigError
        The range is not made of granules or too small.
    """

    def __init__(self, base: int, size: int) -> None:
        if base % GRANULE or size % GRANULE or size < 2 * CHUNK:
            raise ConfigError(f"no arena fits into {size} bytes at {base:#x}")
        self.base, self.end = base, base + size
        self.boundary = base + size // 2 // CHUNK * CHUNK
        self._pool = FirstFit(base, self.boundary)
        self._large = FirstFit(self.boundary, self.end)
        #: Address -> bytes of freed large ranges, the oldest first.
        self._resting: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._order: list[int] = []
        #: Live allocations in each chunk, by its address.
        self._users: dict[int, int] = {}

    def place(self, size: int) -> int | None:
        """Place an allocation of ``size`` > 0 bytes; return its address, None without room."""
        if size < LARGE:
            address = self._pool.take(_slabs(size))
        else:
            length = _granules(size)
            address = self._take_resting(length)
            if address is None:
                address = self._large.take(length)
            if address is None and self._resting:
                self._wake()
                address = self._large.take(length)
        if address is not None:
            self._add(address, size)
        return address

    def place_at(self, address: int, size: int) -> bool:
        """Place an allocation exactly at ``address``; False if that cannot be."""
        if address < self.boundary:
            taken = address % ALIGNMENT == 0 and self._pool.take_at(address, _slabs(size))
        else:
            taken = address % GRANULE == 0 and self._take_large_at(address, _granules(size))
        if taken:
            self._add(address, size)
        return taken

    def remove(self, address: int, *, rest: bool = True) -> list[Chunk]:
        """Remove a live allocation; return the chunks in which nothing lives any more.

        A large range may ``rest``; otherwise it is as free as if it had never been taken.
        """
        chunks = self.chunks(address)
        size = self._sizes.pop(address)
        del self._order[bisect_left(self._order, address)]
        if address < self.boundary:
            self._pool.release(address, _slabs(size))
        else:
            self._resting[address] = _granules(size)
            if not rest:
                self._wake(address)
            elif len(self._resting) > RESTING:
                self._wake(next(iter(self._resting)))
        return [chunk for chunk in chunks if self._leave(chunk)]

    def chunks(self, address: int) -> list[Chunk]:
        """Return the chunks that a live allocation lies in, by address."""
        end = self.end_of(address)
        if address >= self.boundary:
            return [Chunk(address, end - address)]
        first = self.base + (address - self.base) // CHUNK * CHUNK
        return [Chunk(start, CHUNK) for start in range(first, end, CHUNK)]

    def end_of(self, address: int) -> int:
        """Return where the range that a live allocation takes ends."""
        size = self._sizes[address]
        return address + (_slabs(size) if address < self.boundary else _granules(size))

    def find(self, address: int) -> Block | None:
        """Return the live allocation that holds ``address``."""
        index = bisect_right(self._order, address) - 1
        if index < 0:
            return None
        start = self._order[index]
        size = self._sizes[start]
        return Block(start, size) if address < start + size else None

    def starts(self, address: int) -> bool:
        """Return whether a live allocation begins at ``address``."""
        return address in self._sizes

    def blocks(self) -> list[Block]:
        """Return every live allocation, by address."""
        return [Block(address, self._sizes[address]) for address in self._order]

    def _add(self, address: int, size: int) -> None:
        self._sizes[address] = size
        order = self._order
        if order and order[-1] > address:
            order.insert(bisect_left(order, address), address)
        else:
            order.append(address)
        for chunk in self.chunks(address):
            self._users[chunk.address] = self._users.get(chunk.address, 0) + 1

    def _leave(self, chunk: Chunk) -> bool:
        """Count an allocation out of a chunk; return whether it was the last one."""
        left = self._users[chunk.address] - 1
        if left:
            self._users[chunk.address] = left
        else:
            del self._users[chunk.address]
        return not left

    # -- large ranges --------------------------------------------------------

    def _take_resting(self, length: int) -> int | None:
        """Take the resting range of exactly this length that was freed last."""
        for address in reversed(self._resting):
            if self._resting[address] == length:
                del self._resting[address]
                return address
        return None

    def _take_large_at(self, address: int, length: int) -> bool:
        if self._resting.get(address) == length:
            del self._resting[address]
            return True
        self._wake()
        return self._large.take_at(address, length)

    def _wake(self, address: int | None = None) -> None:
        """Let one resting range, or all of them, be taken by whoever fits."""
        for start in list(self._resting) if address is None else [address]:
            self._large.release(start, self._resting.pop(start))


def _slabs(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _granules(size: int) -> int:
    return -(-size // GRANULE) * GRANULE
