"""Pinned chunks are lent for as long as a copy or a view needs them, and no longer."""

from __future__ import annotations

import pytest
from helpers.fake_cuda import Bench

from outlast.server.drivers.cuda import staging as module
from outlast.server.drivers.cuda.staging import (
    BLOCK,
    CHUNK,
    ENOUGH_BLOCKS,
    FIRST_BLOCKS,
    SMALL,
    Staging,
)


@pytest.fixture
def staging(bench: Bench) -> Staging:
    return Staging(bench.cuda, bench.timeline.mark, bench.timeline.finished)


def test_small_copies_of_a_stream_share_a_chunk_and_do_not_overlap(
    bench: Bench, staging: Staging
) -> None:
    stream = bench.stream()
    places = [staging.place(stream, size) for size in (1, 4096, SMALL)]
    assert len({chunk.address for chunk, _ in places}) == 1
    offsets = [offset for _, offset in places]
    assert offsets == sorted(set(offsets))
    assert offsets[1] >= 1
    assert offsets[2] >= offsets[1] + 4096


def test_full_chunk_comes_back_once_its_copies_are_over(bench: Bench, staging: Staging) -> None:
    stream = bench.stream()
    first, _ = staging.place(stream, SMALL)
    work = bench.issue(stream)
    while staging.place(stream, SMALL)[0] is first:
        pass
    taken = [staging.take() for _ in range(BLOCK * FIRST_BLOCKS)]
    assert first not in taken  # its copy is under way: there is fresh memory instead
    work.ended = True
    rest = [staging.take() for _ in range(BLOCK)]
    assert first in rest


def test_a_stream_that_stands_still_is_waited_for_a_moment_and_then_gets_more(
    bench: Bench, staging: Staging
) -> None:
    stream = bench.stream()
    work = bench.issue(stream)
    mark = bench.timeline.mark(stream)
    for _ in range(BLOCK * ENOUGH_BLOCKS + 1):
        staging.lend(staging.take(), mark)
    assert len(staging._blocks) == ENOUGH_BLOCKS + 1
    work.ended = True
    staging.close()
    assert not bench.cuda.registered


def test_view_holds_its_chunk_until_it_is_gone(
    bench: Bench, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BLOCKS", FIRST_BLOCKS)
    stream, chunk = bench.stream(), staging.take()
    bench.issue(stream).ended = True
    view = staging.reader(chunk, CHUNK, bench.timeline.mark(stream))
    everything = [staging.take() for _ in range(BLOCK * FIRST_BLOCKS - 1)]
    assert chunk not in everything
    with pytest.raises(MemoryError):
        staging.take()
    chunk.view[:3] = b"abc"
    part = view[:3]
    del view
    with pytest.raises(MemoryError):
        staging.take()
    assert bytes(part) == b"abc"
    del part
    assert staging.take() is chunk


def test_memory_that_nothing_uses_is_given_back(bench: Bench, staging: Staging) -> None:
    stream = bench.stream()
    bench.issue(stream).ended = True
    staging.lend(staging.take(), bench.timeline.mark(stream))
    staging.close()
    assert not bench.cuda.registered


def test_a_chunk_is_filled_with_what_it_is_given(staging: Staging) -> None:
    chunk = staging.take()
    chunk.view[:] = bytes([9]) * CHUNK
    chunk.fill(memoryview(b"abc"))
    assert bytes(chunk.view[:4]) == b"abc\x09"
