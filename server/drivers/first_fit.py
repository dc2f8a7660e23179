"""A range of addresses of which parts are given out, lowest first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_SIZES = 64  # powers of two that a hole's size can reach


class FirstFit:
    """Addresses of ``[start, end)``, given out lowest first.

    What is given out next depends on what is free, not on how it came to be free.
    """

    def __init__(self, start: int, end: int) -> None:
        self._starts = [start]
        self._ends = [end]
        #: For each power of two: below this address no hole is that large.
        self._lowest = [start] * _SIZES

    def find(self, size: int) -> int | None:
        """Return the lowest address with room for ``size``; None if there is none."""
        index = self._find(size)
        return None if index is None else self._starts[index]

    def take(self, size: int) -> int | None:
        """Take the lowest range of ``size``; return its address, None if there is none."""
        index = self._find(size)
        if index is None:
            return None
        start = self._starts[index]
        self._cut(index, start, size)
        return start

    def take_at(self, address: int, size: int) -> bool:
        """Take exactly this range, if it is free."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address + size > self._ends[index]:
            return False
        self._cut(index, address, size)
        return True

    def release(self, address: int, size: int) -> None:
        """Give a range back; it merges with its free neighbours."""
        start, end = address, address + size
        index = bisect_left(self._starts, address)
        if index < len(self._starts) and self._starts[index] == end:
            end = self._ends[index]
            del self._starts[index], self._ends[index]
        if index and self._ends[index - 1] == address:
            start = self._starts[index - 1]
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, address)
            self._ends.insert(index, end)
        for power in range((end - start).bit_length()):
            if self._lowest[power] > start:
                self._lowest[power] = start

    def _find(self, size: int) -> int | None:
        """Return the first hole that fits, by index, and remember that none before it does."""
        starts, ends = self._starts, self._ends
        first = bisect_left(starts, self._lowest[size.bit_length() - 1])
        for index in range(first, len(starts)):
            if ends[index] - starts[index] >= size:
                self._remember(size, starts[index])
                return index
        if starts:
            self._remember(size, ends[-1])
        return None

    def _remember(self, size: int, start: int) -> None:
        for power in range((size - 1).bit_length(), _SIZES):
            if self._lowest[power] >= start:
                return
            self._lowest[power] = start

    def _cut(self, index: int, address: int, size: int) -> None:
        start, end = self._starts[index], self._ends[index]
        pieces = [(a, b) for a, b in ((start, address), (address + size, end)) if a < b]
        self._starts[index : index + 1] = [a for a, _ in pieces]
        self._ends[index : index + 1] = [b for _, b in pieces]
