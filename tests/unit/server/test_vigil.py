"""When a worker says that nobody comes for its session any more, and when it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outlast.server import vigil as module
from outlast.server.vigil import LONGEST_STEP, Vigil

LINGER = 10.0  # seconds


class World:
    """A vigil with a clock to turn, and what it has said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, linger: float = LINGER) -> None:
        self.now = 1000.0
        self.said: list[Any] = []
        self.host = SimpleNamespace(peer=None, generation=0)
        self.epochs = SimpleNamespace(busy=False)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        channel = SimpleNamespace(send=self.said.append)
        self.vigil = Vigil(self.host, self.epochs, channel, linger)  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> None:
        """Let time pass while the worker looks often."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + LONGEST_STEP / 2)
            self.vigil.step()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_nobody_attached_for_long_is_said_once_in_that_time(world: World) -> None:
    world.pass_time(LINGER - 0.1)
    assert world.said == []

    world.pass_time(0.2)
    assert world.said == [{"kind": "abandoned"}]
    world.pass_time(LINGER - 1)
    assert len(world.said) == 1


def test_an_attached_client_may_be_silent_for_ever(world: World) -> None:
    world.host.peer = b"client"
    world.pass_time(10 * LINGER)

    assert world.said == []


def test_the_time_counts_from_the_loss_of_the_client(world: World) -> None:
    world.host.peer = b"client"
    world.pass_time(10 * LINGER)
    world.host.peer = None
    world.pass_time(LINGER - 0.1)
    assert world.said == []

    world.pass_time(0.2)
    assert len(world.said) == 1


def test_a_client_that_the_gateway_has_let_in_gets_the_whole_time_to_attach(world: World) -> None:
    world.pass_time(LINGER - 0.1)
    world.host.generation += 1
    world.pass_time(LINGER - 0.1)

    assert world.said == []


def test_what_passes_while_the_worker_stands_still_hardly_counts(world: World) -> None:
    world.host.peer = b"client"
    world.vigil.step()
    world.host.peer = None
    for _ in range(3):
        world.now += 100 * LINGER
        world.vigil.step()

    assert world.said == []


def test_an_epoch_that_is_being_saved_is_finished_first(world: World) -> None:
    world.epochs.busy = True
    world.pass_time(2 * LINGER)
    assert world.said == []

    world.epochs.busy = False
    world.pass_time(1)
    assert len(world.said) == 1


def test_without_a_time_nothing_is_ever_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, linger=0.0)
    world.pass_time(100 * LINGER)

    assert world.said == []
