"""Allocations from an arena against the device's own `cuMemAlloc`, as JSON lines.

On a GPU (``--device cuda``) what counts is the ratio: an arena must not be slower. On the
emulated device the figures are what placing and bookkeeping cost in Python.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from harness import median_us, report

from outlast.server.drivers.arena import KEPT, Arena

BASE = 0x1000_0000_0000
SIZE = 256 << 30
MIB = 1 << 20
SIZES = {"4 KiB": 4096, "2 MiB": 2 * MIB, "20 MiB": 20 * MIB, "64 MiB": 64 * MIB, "1 GiB": 1 << 30}
#: Allocated besides, with every other one freed again.
CROWD = 20_000


class Idle:
    """The fences of a device without work."""

    def fence(self) -> int:
        """Name no work."""
        return 0

    def done(self, fence: int) -> bool:
        """All work is done."""
        return True

    def wait(self, fence: int, timeout: float) -> bool:
        """All work is done."""
        return True

    def order_after(self, fence: int) -> None:
        """There is nothing to order after."""


def open_device(name: str) -> tuple[Any, int]:
    """Return CUDA's calls, with the primary context current, and where to reserve."""
    if name == "cuda":
        from cuda.bindings import driver

        cuda: Any = driver
        base = BASE
    else:
        from outlast.server.drivers.emulated import EmulatedDriver

        cuda = EmulatedDriver()
        base = cuda.devices()[0].arena_base + SIZE
    assert not cuda.cuInit(0)[0]
    error, context = cuda.cuDevicePrimaryCtxRetain(0)
    assert not error
    assert not cuda.cuCtxSetCurrent(context)[0]
    return cuda, base


def native(cuda: Any, size: int) -> None:
    """Allocate and free by the device's own calls."""
    error, address = cuda.cuMemAlloc(size)
    assert not error
    assert not cuda.cuMemFree(address)[0]


def arena_pair(arena: Arena, size: int) -> None:
    """Allocate and free from an arena."""
    code, address = arena.allocate(size)
    assert not code
    assert not arena.release(address)


def fresh_pair(arena: Arena, size: int) -> None:
    """Allocate and free without a mapped chunk to begin with."""
    arena_pair(arena, size)
    arena.reclaim()


def compare(cuda: Any, arena: Arena, repeat: int, label: str = "") -> None:
    """Print what an allocation and its free cost, natively and from the arena."""
    for name, size in SIZES.items():
        pairs: tuple[tuple[str, Callable[[], None]], ...] = (
            ("native", functools.partial(native, cuda, size)),
            ("arena", functools.partial(arena_pair, arena, size)),
            ("arena, memory mapped each time", functools.partial(fresh_pair, arena, size)),
        )
        costs: list[float] = []
        for way, call in pairs:
            for _ in range(3):
                call()
            costs.append(median_us(call, repeat))
            ratio = round(costs[-1] / costs[0], 3)
            report(f"allocate and free {name}{label}, {way}", costs[-1], "us", ratio=ratio)


def crowd(arena: Arena) -> None:
    """Leave many small allocations with holes between them."""
    addresses = [arena.allocate(1024)[1] for _ in range(CROWD)]
    for address in addresses[::2]:
        arena.release(address)


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("emulated", "cuda"), default="emulated")
    parser.add_argument("--repeat", type=int, default=300)
    options = parser.parse_args()
    cuda, base = open_device(options.device)
    arena = Arena(cuda, 0, base=base, size=SIZE, fences=Idle())
    report("empty chunks that stay mapped", KEPT / MIB, "MiB")
    compare(cuda, arena, options.repeat)
    crowd(arena)
    compare(cuda, arena, options.repeat, f" among {CROWD // 2} others and their holes")
    arena.close()


if __name__ == "__main__":
    main()
