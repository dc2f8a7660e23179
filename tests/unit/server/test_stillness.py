"""Sessions that are too large for a copy: saved in pieces, while their calls wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.emulated_bindings import EmulatedBindings
from helpers.life import BULK, IDENTITY, Life
from helpers.server_process import assert_eventually

from outlast.checkpoint_providers import pieces
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.errors import CheckpointError, OutlastError
from outlast.server import epochs, stillness
from outlast.server.drivers.cuda import CudaDriver
from outlast.server.epochs import EpochKeeper
from outlast.server.stillness import Stillness
from outlast.session.host import HostSession

#: Far from the product's addresses and from those of other tests.
DEVICE, RANGE = 0x1E00_0000_0000, 64 << 30
ARENA, ARENA_SIZE = DEVICE + (8 << 30), 32 << 30
PIECE = 1 << 20  # bytes
DEADLINE = 30.0  # seconds


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    """A device whose memory the host cannot address."""
    bindings = EmulatedBindings(base=DEVICE, arena_size=RANGE, memory=1 << 30)
    opened = CudaDriver(cuda=bindings, base=ARENA, arena_size=ARENA_SIZE)
    yield opened
    opened.close()
    bindings.close()


@pytest.fixture
def life(driver: CudaDriver) -> Life:
    """A session with some work behind it."""
    begun = Life(MemoryProvider(), driver)
    begun.begin()
    begun.work(0)
    return begun


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all blocks that are taken for pieces, which are small here."""
    sizes: list[int] = []
    real = pieces.memory

    def memory(size: int) -> memoryview:
        sizes.append(size)
        return real(size)

    for module in ("pieces", "reader"):
        monkeypatch.setattr(f"outlast.checkpoint_providers.{module}.memory", memory)
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    return sizes


class Keeper:
    """An epoch keeper, and what it tells its gateway and its client."""

    def __init__(self, life: Life, deadline: float = 5.0) -> None:
        self.life = life
        self.sent: list[dict[str, Any]] = []
        self.woken = threading.Event()
        none: Any = None
        link = SimpleNamespace(wake=self.woken.set, send=lambda *_: True)
        channel = SimpleNamespace(send=self.sent.append)
        self.epochs = EpochKeeper(
            IDENTITY,
            life.host,
            life.checkpointer,
            cast(Any, link),
            cast(Any, channel),
            0.0,
            deadline,
            none or 30.0,
        )
        self.ends: list[OutlastError | None] = []

    def begin(self) -> None:
        """Begin an epoch."""
        self.epochs.begin(self.ends.append)

    def until_saved(self) -> None:
        """Let the worker's loop go round until the epoch is stored, or has failed."""
        assert_eventually(self._step, "the epoch comes to an end")

    def _step(self) -> bool:
        self.epochs.step()
        return bool(self.sent or self.ends)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has no memory for any copy."""
    monkeypatch.setattr(epochs, "room", lambda size: 0)


@pytest.mark.usefixtures("short")
def test_what_does_not_fit_is_saved_in_pieces_while_calls_wait(
    life: Life, driver: CudaDriver, taken: list[int]
) -> None:
    keeper = Keeper(life)
    keeper.begin()
    assert life.host.crowded(0)
    assert life.host.still
    keeper.until_saved()

    assert keeper.ends == []
    (told,) = keeper.sent
    assert not life.host.still
    assert not life.host.crowded(0)
    assert taken == [PIECE] * 3

    life.end()
    again = Life(life.provider, driver)
    again.checkpointer.restore(told["location"], told["digest"])
    again.check(0, 0)
    assert max(taken) <= 16 << 20


@pytest.mark.usefixtures("short")
def test_calls_go_on_once_everything_is_read(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    def wait(point: Any) -> None:
        if point.stage == "fsync":
            assert written.wait(DEADLINE)

    life.provider.stage_hook = wait
    keeper = Keeper(life)
    keeper.begin()
    assert keeper.woken.wait(DEADLINE)
    keeper.epochs.step()
    assert not life.host.still
    assert keeper.epochs.busy
    life.work(1)  # this changes what is stored no more
    written.set()
    keeper.until_saved()

    (told,) = keeper.sent
    with life.provider.open(told["location"]) as reader:
        region = next(r for r in reader.manifest.regions if r.length == BULK)
        assert reader.read(region) == bytes(BULK)


@pytest.mark.usefixtures("short")
def test_a_session_that_stood_still_too_long_goes_on_without_an_epoch(
    life: Life, driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    real = driver.reader

    def slow(region: Any) -> Any:
        def read(offset: int, target: memoryview) -> None:
            inside.set()
            assert go_on.wait(DEADLINE)
            real(region)(offset, target)

        return read

    monkeypatch.setattr(driver, "reader", slow)
    keeper = Keeper(life, deadline=-1.0)
    life.host.peer = b"client"
    keeper.begin()
    assert inside.wait(DEADLINE)
    keeper.epochs.step()
    keeper.epochs.step()
    assert not life.host.still, "its calls go on although the read has not come back"
    go_on.set()
    keeper.until_saved()

    (error,) = keeper.ends
    assert isinstance(error, CheckpointError)
    assert "--epoch-deadline" in str(error)
    assert life.provider.list(IDENTITY.session_id) == []
    # It does not stand still again for what is as large.
    inside.clear()
    keeper.begin()
    assert not life.host.still
    assert not inside.is_set()
    assert "--epoch-deadline" in str(keeper.ends[-1])


@pytest.mark.usefixtures("short")
def test_a_session_nobody_is_attached_to_stands_still_as_long_as_it_takes(
    life: Life,
) -> None:
    go_on = threading.Event()

    def wait(point: Any) -> None:
        assert go_on.wait(DEADLINE)

    life.provider.stage_hook = wait
    keeper = Keeper(life, deadline=-1.0)
    keeper.begin()
    for _ in range(5):
        keeper.epochs.step()
        assert life.host.still
    go_on.set()
    keeper.until_saved()
    assert keeper.ends == []


@pytest.mark.usefixtures("short")
def test_calls_go_on_when_the_save_fails(life: Life) -> None:
    def full(point: Any) -> None:
        raise OSError(28, "No space left on device")

    life.provider.stage_hook = full
    keeper = Keeper(life)
    keeper.begin()
    keeper.until_saved()

    assert "No space left" in str(keeper.ends[0])
    assert not life.host.still


def test_what_fits_is_copied_behind_the_rest(
    life: Life, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    monkeypatch.setattr(epochs, "room", lambda size: size - 1)
    keeper = Keeper(life)
    keeper.begin()
    keeper.until_saved()

    size = life.checkpointer.size
    assert taken == [PIECE] * 3 + [size - PIECE]


def test_a_small_copy_is_always_made_and_a_large_one_where_there_is_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 1 << 30
    for available, size, expected in (
        (0, 1 << 20, 1 << 20),
        (128 * gib, 90 * gib, 96 * gib),
        (128 * gib, 100 * gib, 96 * gib),
        (None, 100 * gib, 100 * gib),
    ):
        monkeypatch.setattr(stillness, "available_memory", lambda found=available: found)
        assert stillness.room(size) == expected


def test_a_read_during_which_calls_went_on_does_not_count() -> None:
    host = HostSession()
    host.peer = b"client"
    still = Stillness(host, -1.0, lambda: None)

    def read(offset: int, target: memoryview) -> None:
        assert still.watch()

    with pytest.raises(CheckpointError, match="--epoch-deadline"):
        still.guard(read)(0, memoryview(bytearray(8)))
    assert still.read == 0
