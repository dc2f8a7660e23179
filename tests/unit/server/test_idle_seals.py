"""When a worker seals its session, and when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.keeper import end_keeper, keeper_pids
from helpers.life import BIND, IDENTITY, Life
from helpers.server_process import assert_eventually, kill

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.server import idle_seals
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.idle_seals import IdleSeals
from outlast.session import wire
from outlast.session.host import State
from outlast.session.operations import Op

ASK = wire.pack_record(Op.MEM_INFO, 1)


class Worker:
    """The parts of a worker that its seals need."""

    def __init__(self, state: Path, after: float) -> None:
        self.life = Life(MemoryProvider(), EmulatedDriver(memory=64 << 20))
        #: A message has come.
        self.called = False
        self.copies = 0
        self.epochs: Any = SimpleNamespace(
            identity=IDENTITY, busy=False, without_memory=self._without_memory
        )
        link: Any = SimpleNamespace(has_more=lambda: self.called, wake=lambda: None)
        start = {
            "state_dir": str(state),
            "session": "train",
            "token": 1,
            "idle_seal": after,
            "keep_for": 60.0,
        }
        self.seals = IdleSeals(start, self.life.executor, self.epochs, link)

    def _without_memory(self, copy: bool) -> Any:
        self.copies += 1
        cut = self.life.host.cut()
        return self.life.checkpointer.snapshot(IDENTITY, 1, cut, copy, shared=True)

    @property
    def sealed(self) -> bool:
        return self.seals.deposit.at_rest

    def come_to_rest(self) -> None:
        """Step until the session is sealed."""

        def sealed() -> bool:
            self.seals.step()
            return self.sealed

        assert_eventually(sealed, "the session is sealed")

    def steps(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step as often as it may take to make a seal, but not beyond ``until``."""
        for _ in range(20):
            self.seals.step()
            if until():
                return
            for draft in filter(None, (self.seals._draft, *self.seals._dropped)):
                assert_eventually(lambda draft=draft: draft.outcome is not None, "it is written")  # type: ignore[misc]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made = []

    def make(after: float = 1e-6) -> Worker:
        made.append(Worker(tmp_path, after))
        made[-1].life.begin()
        assert made[-1].life.executor.idle(30.0)
        made[-1].seals.step()
        return made[-1]

    yield make
    for worker in made:
        worker.seals.stop()
        worker.steps()
        worker.seals.deposit.keeper.close()
        worker.life.driver.close()
    for pid in keeper_pids(tmp_path):
        kill(pid)
    assert_eventually(lambda: not keeper_pids(tmp_path), "the keeper ends")


def test_a_session_that_stands_still_is_sealed_once(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.come_to_rest()
    (entry,) = worker.seals.deposit.keeper.holdings()
    assert (entry["sealed"], entry["seq"]) == (True, worker.life.host.applied)
    worker.life.executor.run(99, 0, 0, BIND + ASK, [])
    worker.steps()
    assert (worker.sealed, worker.copies) == (True, 1)
    worker.life.work(0)
    assert not worker.sealed
    worker.seals._not_before = 0.0
    worker.come_to_rest()
    assert worker.seals.deposit.keeper.holdings()[0]["seq"] == worker.life.host.applied


def test_a_call_that_comes_while_a_seal_is_made_makes_it_void(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.come_to_rest()  # there is a keeper now
    worker.life.work(0)
    worker.seals._not_before = 0.0
    worker.steps(until=lambda: worker.copies == 2)
    worker.life.work(1)
    worker.seals.step()
    assert not worker.seals.in_hand
    assert not worker.seals.deposit.keeper.holdings()[0]["sealed"]
    worker.come_to_rest()
    assert worker.copies == 3
    assert worker.seals.deposit.keeper.holdings()[0]["seq"] == worker.life.host.applied


def test_whoever_calls_does_not_wait_for_the_rest_of_a_seal(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.called = True
    worker.steps(until=lambda: worker.seals.in_hand)
    assert_eventually(lambda: worker.steps() or worker.seals.deposit.claimed, "the keeper is there")
    worker.steps()
    assert not worker.sealed
    worker.called = False
    worker.come_to_rest()
    assert worker.copies == 1


@pytest.mark.parametrize("why", ["off", "polled", "replaying", "poisoned", "saving", "waited for"])
def test_a_session_that_is_not_quite_idle_is_not_sealed(
    make: Callable[..., Worker], tmp_path: Path, why: str
) -> None:
    worker = make(0.0 if why == "off" else 1e-6)
    executor = worker.life.executor
    if why == "replaying":
        worker.life.host.state = State.REPLAYING
    elif why == "poisoned":
        executor.poisoned = 700
    elif why == "saving":
        worker.epochs.busy = True
    elif why == "waited for":
        executor.waits.append(SimpleNamespace())  # type: ignore[arg-type]
    for _ in range(20):
        if why == "polled":
            executor.run(99, 0, 0, BIND + ASK, [])
        worker.seals.step()
    assert worker.copies == 0
    assert not keeper_pids(tmp_path)


def test_a_session_without_memory_needs_no_seal(make: Callable[..., Worker]) -> None:
    worker = make()
    for address in list(worker.life.executor.allocations):
        worker.life.do(wire.pack_record(Op.MEM_FREE, address))
    worker.steps()
    assert worker.copies == 0


def test_what_another_client_is_owed_is_not_sealed(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.steps(until=lambda: worker.copies == 1)
    worker.epochs.identity = SimpleNamespace()
    worker.come_to_rest()
    assert worker.copies == 2


def test_a_keeper_that_ended_is_missed(make: Callable[..., Worker], tmp_path: Path) -> None:
    worker = make()
    worker.come_to_rest()
    (pid,) = end_keeper(tmp_path)
    worker.seals._look_at = worker.seals._not_before = 0.0
    worker.seals.step()
    assert not worker.sealed
    worker.come_to_rest()
    assert keeper_pids(tmp_path) not in ([], [pid])


def test_failures_are_told_once_and_tried_less_and_less_often(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(idle_seals, "MOST_OBJECTS", 3)
    worker = make()
    waits = []
    for _ in range(10):
        worker.seals._not_before = 0.0
        worker.seals.step()
        waits.append(worker.seals._pause)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "7 objects, and 3 are allowed" in told[0]
    assert waits == sorted(waits)
    assert waits[-1] == idle_seals.LONGEST_PAUSE
    monkeypatch.undo()
    worker.seals._not_before = 0.0
    worker.come_to_rest()
