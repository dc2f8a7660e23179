"""When a worker begins an epoch: not again and again while they fail."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.errors import CheckpointCancelled, CheckpointError, OutlastError
from outlast.server import epochs
from outlast.server.checkpointer import Identity
from outlast.server.epochs import EpochKeeper
from outlast.session.host import HostSession


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(epochs.time, "monotonic", lambda: clock.now)
    return clock


def keeper_of(idle: Any) -> EpochKeeper:
    host = HostSession()
    host.applied = 7
    executor = SimpleNamespace(poisoned=0, idle=idle)
    checkpointer: Any = SimpleNamespace(saving=False, executor=executor, size=0)
    none: Any = None
    return EpochKeeper(Identity("s", b"", 1), host, checkpointer, none, none, 0.0, 5.0, 30.0)


@pytest.mark.parametrize("error", [MemoryError(), CheckpointError("the device fails")])
def test_a_copy_that_cannot_be_made_costs_the_epoch_and_not_the_worker(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(*_: Any, **__: Any) -> None:
        raise error

    keeper = keeper_of(lambda deadline: True)
    monkeypatch.setattr(keeper._checkpointer, "snapshot", snapshot, raising=False)
    told: list[OutlastError | None] = []

    keeper.begin(told.append)

    assert [type(each) for each in told] == [CheckpointError]
    assert not keeper.busy


@pytest.mark.parametrize(
    ("error", "level"), [(CheckpointError("disk"), "ERROR"), (CheckpointCancelled("over"), "INFO")]
)
def test_only_what_is_wanted_still_is_an_error(
    error: CheckpointError,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A program that ends its session cancels what is being saved of it."""

    def snapshot(*_: Any, **__: Any) -> None:
        raise error

    keeper = keeper_of(lambda deadline: True)
    monkeypatch.setattr(keeper._checkpointer, "snapshot", snapshot, raising=False)
    with caplog.at_level("INFO", logger="outlast.server.epochs"):
        keeper.begin()
    assert [record.levelname for record in caplog.records] == [level]


def test_an_epoch_that_fails_is_not_begun_again_at_once(clock: SimpleNamespace) -> None:
    attempts = []
    keeper = keeper_of(lambda deadline: attempts.append(clock.now))

    for _ in range(1000):  # the client asks at every step, for its log is full
        keeper.requested = True
        keeper.step()
        clock.now += 0.01

    assert attempts[0] == 100.0
    assert 3 <= len(attempts) <= 6
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses == sorted(pauses)


def test_who_asks_for_an_epoch_that_is_there_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeper_of(lambda deadline: True)
    told: list[str] = []
    monkeypatch.setattr(keeper, "_tell", told.append)
    keeper.last_seq = 7
    keeper.step()
    assert told == []
    keeper.requested = True
    keeper.step()
    assert told == [""]
    keeper.step()
    assert told == [""]
