"""Checkpoint and restore a thousand times: nothing is lost, and nothing is left behind.

A restore proper needs a fresh worker process, which takes half a second and more on a GPU. So a
thousand cycles are done in one process: calls, an epoch stored on disk and verified, the device
emptied as at the end of a program, and a restore into new tables, through the same executor,
checkpointer and provider as in a worker. What such a process keeps of a life shows there. What
a server keeps of its workers, and the device of their contexts, shows in forty cycles with a
worker killed in each, the next one restored from what was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ptx
from helpers.checkpoint_files import published, unfinished
from helpers.life import Footprint, Life
from helpers.program import Program, epochs_of, journal_of, ok, running
from helpers.server_process import ServerProcess, assert_eventually

from outlast.checkpoint_providers import open_provider
from outlast.server.drivers import get_driver
from outlast.server.drivers.base import Driver
from outlast.shim import driver as cuda

pytestmark = pytest.mark.whole_device

MIB = 1 << 20
CYCLES = {"cuda": 1000, "emulated": 60}
WORKERS = {"cuda": 40, "emulated": 10}
#: Cycles until Python, CUDA and the allocators have what they keep.
WARM = {"cuda": 10, "emulated": 5}
#: How much a process may grow behind that: far less than what each cycle takes, times cycles.
SLACK = 32 * MIB
#: Threads that wait for streams are made as they are needed, eight at most.
FEW = {"cuda": 8, "emulated": 0}
#: How much less of the device may be free: less than one context takes.
DEVICE_SLACK = 64 * MIB
#: What SQLite may have in its log before it takes it into the journal.
JOURNAL_SLACK = 8 * MIB
#: Where no session's server puts its memory.
BASE = 0x1200_0000_0000
LEASE = 2.0  # seconds; until it is over, an epoch that is not needed any more stays on disk


@pytest.fixture
def driver(device: str) -> Iterator[Driver]:
    """The device itself, in this process."""
    opened = get_driver(device, base=BASE)
    yield opened
    assert opened.fault() is None
    opened.close()


@pytest.mark.timeout(240)
def test_a_thousand_saves_and_restores_leave_nothing_in_the_process_or_on_the_device(
    driver: Driver, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = open_provider(f"directory:{tmp_path / 'checkpoints'}")
    life = Life(provider, driver)
    life.begin()
    number, first, before = 0, 0, None
    for turn in range(WARM[device] + CYCLES[device]):
        life.work(turn)
        number = (number * 10 + turn % 10) % (1 << 64)
        if turn == WARM[device]:
            before, first = Footprint.take(), free(driver)
        stored = life.save()
        life.end()
        life = Life(provider, driver)
        life.restore(stored)
        life.check(number, turn % 251)
    life.work(turn + 1)
    after, last = Footprint.take(), free(driver)
    with capsys.disabled():
        print(f"\n{CYCLES[device]} cycles: {before}, {first} free before")
        print(f"{after}, {last} free behind them")
    assert before is not None
    after.assert_no_more_than(before, SLACK, FEW[device])
    assert first - last < DEVICE_SLACK
    assert len(provider.list("train")) == 1
    assert len(list((tmp_path / "checkpoints").rglob("manifest.json"))) == 1
    life.end()
    provider.close()


def free(driver: Driver) -> int:
    """Return how much of the device is free, whoever has the rest."""
    error, left, _ = driver.cuMemGetInfo()  # type: ignore[attr-defined]
    assert not error
    return int(left)


@pytest.mark.timeout(240)
def test_forty_workers_one_after_another_leave_nothing_behind(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint-interval", "0", "--lease-ttl", str(LEASE)]
    with (
        ServerProcess(tmp_path / "state", arguments, {"OUTLAST_DEVICE": device}) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        session = Session(program)
        before = session.live(server, WARM[device])
        after = session.live(server, WORKERS[device], WARM[device])
        with capsys.disabled():
            print(f"\n{WORKERS[device]} workers: {before} before\n{after} behind them")
        for name in ("gateway", "worker"):
            after.processes[name].assert_no_more_than(before.processes[name], SLACK, FEW[device])
        assert before.free - after.free < DEVICE_SLACK
        assert after.journal - before.journal < JOURNAL_SLACK
        session.forget(server.state)
        log = server.log_text()
        assert log.count("worker died") == WARM[device] + WORKERS[device]
        assert "parked" not in log


class Session:
    """A program whose memory and objects change in each life of its worker."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tape = program.new_tape()
        self.bulk = program.alloc(8 * MIB)
        module = program.load(ptx.LIST)
        self.total, self.out = program.kernel(module, "total"), program.alloc(8)
        self.variable = program.variable(module, "offset")[0]
        self.number = 0

    def live(self, server: ServerProcess, lives: int, first: int = 0) -> Holdings:
        """Go through so many workers; return what is held in the last one's time."""
        for turn in range(first, first + lives):
            self.change(turn)
            self.program.checkpoint(server.state)
            server.kill_workers()
            self.check(turn)
        assert_eventually(lambda: len(server.workers()) == 2, "the spare worker is there")
        return Holdings(server)

    def change(self, turn: int) -> None:
        """Change everything, and make objects that the next turn finds gone."""
        program = self.program
        self.number = (self.number * 10 + turn % 10) % (1 << 64)
        program.append(*self.tape, [turn % 10])
        ok(cuda.cuMemsetD8(self.bulk, turn % 251, 8 * MIB))
        program.write(self.variable, turn.to_bytes(8, "little"))
        stream, event, memory = program.stream(1), program.event(), program.alloc(40 * MIB)
        program.record(event, stream)
        program.sync()
        ok(cuda.cuStreamDestroy(stream))
        ok(cuda.cuEventDestroy(event))
        program.free(memory)

    def check(self, turn: int) -> None:
        """Everything is as this turn left it."""
        program = self.program
        assert program.number(self.tape[1]) == self.number
        assert program.read(self.bulk, 8 * MIB) == bytes([turn % 251]) * (8 * MIB)
        program.launch(self.total, (("pointer", 0), ("pointer", self.out)))
        assert program.number(self.out) == turn

    def forget(self, state: Path) -> None:
        """Check that all epochs so far are removed in the course of those to come."""
        last = epochs_of(state, "train")[0].epoch

        def forgotten() -> bool:
            self.program.append(*self.tape, [0])
            self.program.checkpoint(state)
            with journal_of(state) as journal:
                kept = [row.epoch for row in journal.epochs("train", unusable=True)]
            return min(kept) > last and len(published(state)) <= len(kept) and not unfinished(state)

        assert_eventually(forgotten, "old epochs are removed, rows and files")


class Holdings:
    """What a server's processes hold, and what is free on the device."""

    def __init__(self, server: ServerProcess) -> None:
        (worker,) = server.session_workers()
        self.processes = {
            "gateway": Footprint.take(server.pid),
            "worker": Footprint.take(worker),
        }
        self.journal = sum(path.stat().st_size for path in server.state.glob("journal.db*"))
        self.free = int(ok(cuda.cuMemGetInfo())[0])

    def __repr__(self) -> str:
        return f"{self.processes}, {self.journal} in the journal, {self.free} free"
