"""Memory of an arena on a device: allocated, filled, looked at."""

from __future__ import annotations

from typing import Any

from outlast.server.drivers.arena import Arena

MIB = 1 << 20
DEVICE = 1 << 30  # bytes of the device


def allocate(arena: Arena, size: int, at: int | None = None) -> int:
    """Allocate, and fail if that fails."""
    code, address = arena.allocate(size, at)
    assert code == 0
    return address


def free_bytes(cuda: Any, arena: Arena) -> int:
    """Return what is free, empty chunks included."""
    result, free, _ = cuda.cuMemGetInfo()
    assert result == 0
    return int(free) + arena.reclaimable


def word(cuda: Any, address: int) -> int:
    """Return the first four bytes at an address, when all work is done."""
    data = bytearray(4)
    assert cuda.cuMemcpyDtoH(data, address, 4)[0] == 0
    return int.from_bytes(data, "little")


def fill(cuda: Any, address: int, size: int, value: int) -> None:
    """Fill a range, without waiting."""
    assert cuda.cuMemsetD8Async(address, value, size, 0)[0] == 0
