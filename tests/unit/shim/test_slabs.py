"""The memory of large copies: used again when it is free, and never before."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from outlast.shim import slabs
from outlast.shim.slabs import Slabs

PIECE = 1 << 16  # bytes: ZeroMQ sends them from where they are
PIECES = 4
MIB = 1 << 20


@pytest.fixture
def pool() -> Slabs:
    return Slabs(PIECE, PIECES, ahead=False)


def data(fill: int, size: int = PIECE) -> memoryview:
    return memoryview(bytes([fill % 256]) * size)


def test_a_copy_holds_what_its_source_held(pool: Slabs) -> None:
    source = bytearray(range(256)) * (PIECE // 256)
    before = bytes(source)

    copy = pool.copy(memoryview(source))
    source[:] = bytes(PIECE)

    assert copy == before
    assert len(copy) == PIECE


@pytest.mark.parametrize("size", [0, 1, PIECE - 1])
def test_what_does_not_fill_a_piece_takes_none(pool: Slabs, size: int) -> None:
    copy = pool.copy(data(7, size))

    assert isinstance(copy, bytes)
    assert copy == bytes([7]) * size
    assert pool.size == 0


def test_a_piece_that_is_held_is_not_used_again(pool: Slabs) -> None:
    held = [pool.copy(data(n)) for n in range(3 * PIECES)]

    assert pool.size == 3 * PIECES * PIECE
    assert [copy == data(n) for n, copy in enumerate(held)] == [True] * len(held)


def test_a_piece_is_used_again_once_it_is_free(pool: Slabs) -> None:
    held = [pool.copy(data(n)) for n in range(PIECES)]
    del held[1]

    held.append(pool.copy(data(9)))

    assert pool.size == PIECES * PIECE
    assert [copy[0] for copy in held] == [0, 2, 3, 9]


def test_a_part_of_a_view_holds_its_piece(pool: Slabs) -> None:
    copy = pool.copy(data(1))
    part = memoryview(copy)[100:200]
    del copy

    others = [pool.copy(data(2)) for _ in range(PIECES)]

    assert part == data(1, 100)
    assert len(others) == PIECES
    assert pool.size == 2 * PIECES * PIECE


def test_a_thousand_copies_take_no_more_than_are_held_at_once(pool: Slabs) -> None:
    log: deque[bytes | memoryview] = deque(maxlen=6)

    for n in range(1000):
        log.append(pool.copy(data(n)))
        assert pool.size <= 2 * PIECES * PIECE

    assert [copy == data(n) for n, copy in zip(range(994, 1000), log, strict=True)] == [True] * 6


def test_threads_never_get_the_same_piece(pool: Slabs) -> None:
    start = threading.Barrier(4)

    def work(number: int) -> int:
        start.wait(30)
        wrong = 0
        log: deque[tuple[int, bytes | memoryview]] = deque()
        for n in range(300):
            log.append((n, pool.copy(data(number * 50 + n % 50))))
            if len(log) > 3:
                n, copy = log.popleft()
                wrong += copy != data(number * 50 + n % 50)
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [0] * 4
    assert pool.size <= 5 * PIECES * PIECE


def test_a_message_that_is_not_sent_yet_holds_its_piece(pool: Slabs) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        port = push.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.PULL) as pull:
            pull.rcvtimeo = 10_000
            pull.connect(f"tcp://127.0.0.1:{port}")
            for n in range(200):
                # The log drops it at once; the message alone keeps it from being overwritten.
                push.send(pool.copy(data(n)), copy=False)

            assert [pull.recv() == data(n) for n in range(200)] == [True] * 200


def test_a_connection_that_is_closed_gives_its_pieces_back(pool: Slabs) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect("tcp://127.0.0.1:9")  # nobody there: everything stays queued
        for n in range(2 * PIECES):
            dealer.send(pool.copy(data(n)), copy=False)
        assert pool.size == 2 * PIECES * PIECE
        dealer.close(0)
    # pyzmq lets go of messages in a thread of its own.
    free = threading.Event()
    for _ in range(1000):
        pool.trim(0)
        if not pool.size or free.wait(0.01):
            break

    assert pool.size == 0


def test_a_slab_is_given_back_when_it_was_idle_and_only_if_it_is_free(pool: Slabs) -> None:
    held = [pool.copy(data(n)) for n in range(PIECES)]
    more = [pool.copy(data(n)) for n in range(PIECES)]
    del more

    pool.trim(3600.0)
    assert pool.size == 2 * PIECES * PIECE
    pool.trim(0.0)
    assert pool.size == PIECES * PIECE
    assert [copy == data(n) for n, copy in enumerate(held)] == [True] * PIECES
    del held
    pool.trim(0.0)
    assert pool.size == 0
    assert pool.copy(data(5)) == data(5)


def test_views_outlive_their_slabs() -> None:
    pool = Slabs(PIECE, PIECES, ahead=False)
    copy = pool.copy(data(3))
    del pool

    assert copy == data(3)


def test_a_source_that_cannot_be_copied_costs_no_piece(pool: Slabs) -> None:
    strange = memoryview(bytes(2 * PIECE)).cast("H")  # of the right length, not of bytes

    for _ in range(10 * PIECES):
        with pytest.raises(ValueError, match="different"):
            pool.copy(strange)

    assert pool.size == PIECES * PIECE


def test_without_memory_for_a_slab_the_copy_is_made_all_the_same(
    pool: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slabs.mmap, "mmap", fail)

    assert pool.copy(data(4)) == data(4)
    assert pool.size == 0


def test_pieces_that_an_interrupted_thread_lost_sight_of_are_found(
    pool: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: slabs.Slab, index: int) -> memoryview:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(slabs.Slab, "_hold", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.copy(data(0))

    held = [pool.copy(data(n)) for n in range(PIECES)]

    assert pool.size == PIECES * PIECE
    assert [copy == data(n) for n, copy in enumerate(held)] == [True] * PIECES


def test_pieces_of_large_slabs_lie_in_huge_pages() -> None:
    pool = Slabs(MIB, 4)
    held = [pool.copy(data(n, MIB)) for n in range(4)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(copy)) for copy in held]

    assert min(addresses) % (2 * MIB) == 0
    assert sorted(addresses) == [min(addresses) + n * MIB for n in range(4)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slabs]:
    """A pool that touches slabs ahead, however fast they are filled."""
    monkeypatch.setattr(slabs, "HASTE", 3600.0)
    pool = Slabs(PIECE, PIECES, ahead=True)
    yield pool
    pool.close()


def test_the_next_slab_is_touched_while_one_is_filled(eager: Slabs) -> None:
    held = [eager.copy(data(n)) for n in range(PIECES)]
    assert eager.size == PIECES * PIECE, "one slab may be all that is needed"
    held += [eager.copy(data(n)) for n in range(PIECES)]
    assert eager.size == 3 * PIECES * PIECE
    held += [eager.copy(data(n)) for n in range(5 * PIECES)]

    assert eager.size == 8 * PIECES * PIECE
    assert [copy == data(n) for n, copy in zip([0, 1, 2, 3] * 2, held[:8], strict=True)]
    assert len({id(copy.obj) for copy in held if isinstance(copy, memoryview)}) == 7 * PIECES


def test_a_slab_that_was_touched_for_nothing_is_given_back(eager: Slabs) -> None:
    held = [eager.copy(data(n)) for n in range(2 * PIECES)]

    eager.trim(3600.0)
    assert eager.size == 3 * PIECES * PIECE
    eager.trim(0.0)
    assert eager.size == 2 * PIECES * PIECE
    del held


def test_nothing_is_touched_ahead_of_copies_that_take_their_time(
    eager: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slabs, "HASTE", 0.0)
    held = [eager.copy(data(n)) for n in range(3 * PIECES)]

    assert eager.size == len(held) * PIECE


def test_without_memory_for_a_slab_ahead_copies_are_made_all_the_same(
    eager: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [eager.copy(data(n)) for n in range(PIECES)]

    def fail(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    held += [eager.copy(data(n)) for n in range(PIECES)]
    with monkeypatch.context() as patched:
        patched.setattr(slabs.mmap, "mmap", fail)
        held += [eager.copy(data(n)) for n in range(3 * PIECES)]

    expected = [*range(PIECES), *range(PIECES), *range(3 * PIECES)]
    assert [copy == data(n) for n, copy in zip(expected, held, strict=True)] == [True] * len(held)


def test_a_closed_pool_leaves_no_thread(eager: Slabs) -> None:
    held = [eager.copy(data(n)) for n in range(2 * PIECES)]

    eager.close()

    assert "outlast-slab" not in [thread.name for thread in threading.enumerate()]
    assert held[0] == data(0)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each look at a thread's processor time finds to have passed since the last."""
    steps = [0.0]
    spent = [0.0]

    def look() -> float:
        spent[0] += steps[0]
        return spent[0]

    monkeypatch.setattr(slabs.time, "thread_time", look)
    monkeypatch.setattr(slabs, "ENOUGH", 4 * PIECE)
    return steps


@pytest.mark.parametrize("ahead", [False, True])
def test_fresh_memory_is_costly_where_the_system_takes_long_to_give_it(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], ahead: bool
) -> None:
    monkeypatch.setattr(slabs, "HASTE", 3600.0)
    pool = Slabs(PIECE, PIECES, ahead)
    seconds[0] = PIECE * PIECES * 2e-9
    held = [pool.copy(data(n)) for n in range(PIECES - 1)]
    assert not pool.costly, "that is not enough to tell"

    held += [pool.copy(data(n)) for n in range(2 * PIECES)]

    assert pool.costly
    pool.close()
    del held


def test_memory_that_was_used_before_does_not_count(seconds: list[float], pool: Slabs) -> None:
    for n in range(10 * PIECES):
        seconds[0] = 0.0 if n < PIECES else 1.0
        pool.copy(data(n))

    assert pool.size == PIECES * PIECE
    assert not pool.costly
