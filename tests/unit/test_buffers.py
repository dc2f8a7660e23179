"""Memory is used again when nobody looks at it, and never before."""

from __future__ import annotations

import pytest

from outlast import buffers
from outlast.buffers import Buffers

SIZE = 1 << 20


def test_memory_that_nobody_looks_at_serves_again() -> None:
    pool = Buffers()
    first = pool.take(SIZE)
    memory = first.obj
    first.release()
    again = [pool.take(SIZE) for _ in range(3)]
    assert any(view.obj is memory for view in again)


def test_memory_that_a_part_of_a_view_still_shows_is_left_alone() -> None:
    pool = Buffers()
    kept = [pool.take(SIZE)[10:20] for _ in range(100)]
    assert len({id(view.obj) for view in kept}) == 100
    for number, view in enumerate(kept):
        view[:] = bytes([number]) * 10
    assert [view[0] for view in kept] == list(range(100))


def test_another_size_is_other_memory() -> None:
    pool = Buffers()
    pool.take(SIZE).release()
    assert len(pool.take(SIZE // 2)) == SIZE // 2
    assert len(pool.take(100)) == 100


def test_copies_are_the_same_bytes_read_only_or_not() -> None:
    target = bytearray(1000)
    for source in (bytes(range(250)) * 4, bytearray(b"z" * 1000)):
        buffers.copy(memoryview(target), memoryview(source))
        assert target == source


def test_a_copy_into_less_or_other_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="different"):
        buffers.copy(memoryview(bytearray(9)), memoryview(bytes(10)))
    with pytest.raises(ValueError, match="different"):
        buffers.copy(memoryview(bytearray(10)), memoryview(bytes(20)).cast("H"))
    with pytest.raises(BufferError):
        buffers.copy(memoryview(bytearray(20))[::2], memoryview(bytes(10)))
