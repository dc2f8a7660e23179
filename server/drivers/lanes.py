"""Ranges that were freed in the order of one stream: free there at once, elsewhere behind it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

#: Ranges kept before those whose work is done are looked for.
FEW = 64


class Lane(Protocol):
    """A stream as an arena sees it. Equal lanes are the same stream."""

    def fence(self) -> int:
        """Name the work issued so far on this stream; 0 if all of it is done."""

    def follow(self, fence: int) -> None:
        """Let all that is issued from now on in this stream run after that work."""


@dataclass(frozen=True, slots=True)
class LaneRange:
    """A freed range; whoever used it did so before ``fence`` of the stream that freed it."""

    start: int
    end: int
    lane: Lane
    fence: int


class LaneRanges:
    """Disjoint freed ranges by address. Fences of different streams are done in any order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, LaneRange] = {}
        self._many = FEW

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, freed: LaneRange) -> None:
        """Note a range that was freed now."""
        insort(self._starts, freed.start)
        self._ranges[freed.start] = freed

    def take(self, start: int, end: int) -> list[LaneRange]:
        """Cut ``[start, end)`` out; return the ranges of which something was cut."""
        starts = self._starts
        index = bisect_left(starts, start)
        if index and self._ranges[starts[index - 1]].end > start:
            index -= 1
        cut = []
        while index < len(starts) and starts[index] < end:
            cut.append(self._ranges.pop(starts.pop(index)))
        for found in cut:
            if found.start < start:
                self.add(LaneRange(found.start, start, found.lane, found.fence))
            if found.end > end:
                self.add(LaneRange(end, found.end, found.lane, found.fence))
        return cut

    def settle(self, done: Callable[[int], bool]) -> None:
        """Forget the ranges whose fences are ``done``, if there are many by now."""
        if len(self._starts) <= self._many:
            return
        self._ranges = {s: r for s, r in self._ranges.items() if not done(r.fence)}
        self._starts = sorted(self._ranges)
        self._many = max(FEW, 2 * len(self._starts))
