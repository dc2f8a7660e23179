"""Pinned memory is mapped, aligned, registered as a whole, and given back."""

from __future__ import annotations

import pytest
from helpers.fake_cuda import FakeCuda

from outlast.server.drivers.cuda.pinned import PinnedMemory

MIB = 1 << 20


def mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        ranges = [[int(n, 16) for n in line.split()[0].split("-")] for line in maps]
    return any(start <= address < end for start, end in ranges)


def test_it_can_be_used_where_cuda_knows_it_and_only_until_it_is_closed() -> None:
    cuda = FakeCuda()
    first, second = PinnedMemory(cuda, 3 * MIB), PinnedMemory(cuda, MIB)
    assert cuda.registered == {first.address, second.address}
    assert not first.address % (2 * MIB)
    assert not first.address < second.address + MIB <= first.address + 3 * MIB
    view = first.view(MIB, 16)
    view[:] = b"0123456789abcdef"
    assert bytes(first.view(MIB + 8, 8)) == b"89abcdef"
    first.close()
    second.close()
    assert not cuda.registered
    assert not mapped(first.address)


def test_memory_that_cuda_does_not_take_is_given_back() -> None:
    cuda = FakeCuda()
    tried: list[int] = []

    def refuse(address: int, size: int, flags: int) -> tuple[int]:
        tried.append(address)
        return (2,)

    cuda.cuMemHostRegister = refuse  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="error 2"):
        PinnedMemory(cuda, MIB)
    assert not mapped(tried[0])


def test_more_than_there_is_is_an_error() -> None:
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        PinnedMemory(FakeCuda(), 1 << 50)
