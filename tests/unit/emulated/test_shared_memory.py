"""Device memory outlives its device for whoever has a descriptor of it, as a GPU's does."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from outlast.server.drivers.base import OwnedRegion, SharedMemory

INVALID_VALUE = 1


def share(host: Any) -> list[SharedMemory]:
    """Return descriptors of a device's memory."""
    return [SharedMemory(*piece, host.cuda.share(piece)) for piece in host.cuda.pieces()]


def adopt(host: Any, memory: list[SharedMemory], live: dict[int, int]) -> int:
    """Have a device take memory over, with the allocations that live in it."""
    return host.cuda.adopt(memory, [OwnedRegion(0, a, n, host.context) for a, n in live.items()])


def check(returned: tuple[Any, ...]) -> Any:
    """Return the value of a call that must succeed."""
    assert returned[0] == 0, returned[0]
    return returned[-1]


def close(memory: list[SharedMemory]) -> None:
    for part in memory:
        os.close(part.descriptor)


def test_what_lives_is_there_again_and_all_else_is_zero(make_host: Any) -> None:
    first = make_host()
    base = first.cuda.devices()[0].arena_base
    data = np.arange(200_000, dtype=np.uint32)
    kept, freed, last = first.put(data), first.put(data), first.put(data[:5])
    check(first.cuda.cuMemFree(freed))
    first.module("language")  # its variables lie in the same memory
    memory = share(first)
    # Not a copy: what is done behind it is in it.
    check(first.cuda.cuMemsetD32(kept, 7, 1))
    check(first.cuda.cuCtxSynchronize())
    first.cuda.close()
    second = make_host(base=base)
    assert adopt(second, memory, {kept: data.nbytes, last: 20}) == 0
    close(memory)
    assert list(second.get(kept, data)[:3]) == [7, 1, 2]
    assert np.array_equal(second.get(kept, data)[1:], data[1:])
    assert np.array_equal(second.get(last, data[:5]), data[:5])
    again = check(second.cuda.cuMemAlloc(data.nbytes))
    assert again == freed
    assert not second.get(again, data).any()
    more = check(second.cuda.cuMemAlloc(data.nbytes))
    assert not second.get(more, data).any()
    check(second.cuda.cuMemFree(kept))
    assert not second.get(check(second.cuda.cuMemAlloc(data.nbytes)), data).any()


def test_memory_of_another_arena_is_refused(make_host: Any) -> None:
    first, second = make_host(), make_host(arena_size=32 << 30)
    address = first.put(np.arange(5))
    memory = share(first)
    assert adopt(second, memory, {second.cuda.devices()[0].arena_base + (2 << 20): 40}) != 0
    assert adopt(second, [], {address: 40}) == INVALID_VALUE
    close(memory)


def test_a_device_without_allocations_shares_nothing(make_host: Any) -> None:
    assert make_host().cuda.pieces() == []
