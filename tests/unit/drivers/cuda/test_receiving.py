"""Pinned memory for frames: free when nobody looks at it and the device has read it."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_cuda import FakeCuda

from outlast.server.drivers.cuda import receiving
from outlast.server.drivers.cuda.receiving import Receiving
from outlast.server.drivers.cuda.staging import CHUNK


class Passed:
    """A mark that is passed when a test says so."""

    done = False


def finished(mark: Any) -> bool:
    return bool(mark.done)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Receiving:
    monkeypatch.setattr(receiving, "CHUNKS", 2)
    return Receiving(FakeCuda(), finished)


def test_a_chunk_is_free_again_when_all_views_of_it_are_gone(pool: Receiving) -> None:
    views = [pool.take(CHUNK), pool.take(CHUNK)]
    assert all(view is not None and len(view) == CHUNK for view in views)
    assert pool.take(CHUNK) is None
    part = views.pop()
    assert part is not None
    part = part[5:10]
    assert pool.take(CHUNK) is None
    del part
    assert pool.take(CHUNK) is not None


def test_only_whole_pieces_come_here(pool: Receiving) -> None:
    assert pool.take(CHUNK - 1) is None
    assert pool.take(CHUNK + 1) is None


def test_its_own_memory_is_known_and_no_other(pool: Receiving) -> None:
    view = pool.take(CHUNK)
    assert view is not None
    assert pool.address(view)
    assert pool.address(view[7:]) == pool.address(view) + 7
    assert not pool.address(memoryview(bytes(CHUNK)))


def test_what_the_device_still_reads_is_held(pool: Receiving) -> None:
    first, second = Passed(), Passed()
    for mark in (first, second):
        view = pool.take(CHUNK)
        assert view is not None
        pool.hold(view, mark)  # type: ignore[arg-type]
        del view
    assert pool.take(CHUNK) is None
    first.done = True
    pool.hold(memoryview(b"other"), second)  # type: ignore[arg-type]
    freed = pool.take(CHUNK)
    assert freed is not None
    assert pool.take(CHUNK) is None


def test_without_pinned_memory_there_is_none_and_nothing_fails() -> None:
    cuda = FakeCuda()
    cuda.cuMemHostRegister = lambda address, size, flags: (2,)  # type: ignore[method-assign]
    pool = Receiving(cuda, finished)
    assert pool.take(CHUNK) is None
    assert not pool.address(memoryview(bytes(10)))
    pool.close()


def test_it_is_given_back_once_and_not_while_somebody_has_a_part_of_it(pool: Receiving) -> None:
    view = pool.take(CHUNK)
    assert view is not None
    pool.close()
    view[0] = 1  # still there
    del view
    pool.close()
    pool.close()
    assert pool.take(CHUNK) is None
