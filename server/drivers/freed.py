"""Freed ranges that work issued before the free may still use."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable


class FreedRanges:
    """Disjoint ranges, each behind the fence that was taken when it was freed.

    Fences are numbers that grow and are done in their order; 0 is always done.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        #: Start -> end and fence.
        self._ranges: dict[int, tuple[int, int]] = {}
        #: Fence and start, the oldest fence first.
        self._queue: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int, fence: int) -> None:
        """Note a range that was freed now."""
        insort(self._starts, start)
        self._ranges[start] = end, fence
        self._queue.append((fence, start))

    def fence(self, start: int, end: int) -> int:
        """Return the newest fence of the ranges that ``[start, end)`` overlaps."""
        starts, newest = self._starts, 0
        index = bisect_left(starts, start)
        if index and self._ranges[starts[index - 1]][0] > start:
            index -= 1
        while index < len(starts) and starts[index] < end:
            newest = max(newest, self._ranges[starts[index]][1])
            index += 1
        return newest

    def settle(self, done: Callable[[int], bool]) -> None:
        """Forget the ranges whose fences are ``done``."""
        queue = self._queue
        if queue and done(queue[-1][0]):
            queue.clear()
            self._starts.clear()
            self._ranges.clear()
        while queue and done(queue[0][0]):
            _, start = queue.popleft()
            del self._ranges[start]
            del self._starts[bisect_left(self._starts, start)]
