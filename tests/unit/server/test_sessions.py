"""What the gateway does with its sessions when the journal or a shutdown comes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.journal import INCARNATION, TOKEN_HASH, create, epoch

from outlast.errors import JournalUnavailable, OutlastError
from outlast.migrations import upgrade
from outlast.server.drain import Drain
from outlast.server.pool import WorkerPool
from outlast.server.sessions import SessionEntry, SessionTable
from outlast.session.store import Store

HANDLE = {"what": "handle", "kind": "stream", "id": 4096, "recipe": {}, "seq": 1}
EPOCH = {
    "kind": "epoch",
    "seq": 10,
    "location": "train/1/x",
    "size": 1,
    "digest": "00" * 32,
    "created_at": 0.0,
}


class EndedProcess:
    """Stands for a process that nobody has to wait for."""

    returncode = 0

    def poll(self) -> int:
        return self.returncode


class RecordingWorker:
    """Stands for a worker process; keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.closed = False
        self.ready = True
        self.endpoints: list[str] = []
        self.channel = SimpleNamespace(fileno=lambda: -1)
        self.process = EndedProcess()

    def send(self, kind: str, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})

    def dismiss(self) -> EndedProcess:
        self.closed = True
        return self.process

    def died(self) -> None:
        self.ready = False


class InlineGateway:
    """A gateway without processes: transactions run at once, timers when a test says so."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.drain: Drain | None = None
        self.server_id = "a"
        self.config = SimpleNamespace(
            provider="directory", device="emulated", lease_ttl=10.0, grace=30.0, linger=600.0
        )
        self.timers: list[Callable[[], None]] = []
        self.code: int | None = None
        #: Called before each transaction.
        self.before: Callable[[], None] = lambda: None
        self.database = self
        self.relay = SimpleNamespace(worker_gone=lambda endpoints: None)
        #: Sessions whose memory was given back, with the token.
        self.forgotten: list[tuple[str, int]] = []
        self.kept = SimpleNamespace(forget=lambda *what: self.forgotten.append(what))
        self.sessions = SessionTable(self, WorkerPool("emulated"))  # type: ignore[arg-type]

    @property
    def draining(self) -> bool:
        return self.drain is not None

    def submit(self, work: Any, resume: Any, patience: float = 0.0) -> None:
        for _ in range(2):  # as one that is tried again
            try:
                self.before()
                result = work(self.store)
            except JournalUnavailable as error:
                failure: OutlastError = error
                continue
            except OutlastError as error:
                failure = error
                break
            return resume(result, None)
        return resume(None, failure)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def unwatch(self, source: Any) -> None:
        pass

    def finish(self, code: int) -> None:
        self.code = code


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InlineGateway]:
    store = Store.open(f"sqlite:///{tmp_path / 'journal.db'}")
    upgrade(store.engine)
    yield InlineGateway(store)
    store.close()


@pytest.fixture
def entry(gateway: InlineGateway) -> SessionEntry:
    create(gateway.store)
    entry = gateway.sessions.entry("train")
    entry.row = gateway.store.session("train")
    entry.worker = RecordingWorker()  # type: ignore[assignment]
    return entry


def failing(times: int) -> Callable[[], None]:
    left = [times]

    def before() -> None:
        if left[0]:
            left[0] -= 1
            raise JournalUnavailable("it does not answer")

    return before


def test_journal_entries_outlive_a_database_that_does_not_answer(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    gateway.before = failing(2)
    gateway.sessions._on_worker(entry, {"kind": "journal", "entries": [HANDLE], "last": 1})
    assert gateway.store.handles("train") == []

    gateway.timers.pop()()

    assert [row.id for row in gateway.store.handles("train")] == [4096]


def test_a_commit_whose_answer_was_lost_makes_one_epoch(
    gateway: InlineGateway, entry: SessionEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = gateway.store.commit_epoch

    def losing(*arguments: Any) -> int:
        monkeypatch.undo()
        commit(*arguments)
        raise JournalUnavailable("the connection broke")

    monkeypatch.setattr(gateway.store, "commit_epoch", losing)
    gateway.sessions._on_worker(entry, EPOCH)

    assert [row.epoch for row in gateway.store.epochs("train")] == [1]


def test_a_worker_whose_session_another_server_has_taken_is_ended(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    worker = entry.worker
    gateway.store.claim("train", "a")  # as another server would, with a higher token

    gateway.sessions._on_worker(entry, {"kind": "journal", "entries": [HANDLE], "last": 1})

    assert entry.worker is None
    assert worker.closed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tokens", "kept"), [({"train": 1}, True), ({"train": 2}, False), ({}, False)]
)
def test_behind_a_lease_that_had_ended_only_what_nobody_took_over_goes_on(
    gateway: InlineGateway, entry: SessionEntry, tokens: dict[str, int], kept: bool
) -> None:
    worker: Any = entry.worker

    gateway.sessions.keep_only(tokens)

    assert worker.closed is not kept
    assert (gateway.sessions.entry("train") is entry) is kept


def test_the_epochs_of_an_ended_session_are_removed_before_its_worker_goes(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    worker: Any = entry.worker
    gateway.store.commit_epoch("train", entry.token, epoch(1, 10))

    gateway.sessions._on_worker(entry, {"kind": "ended"})
    assert worker.told[-1] == {"kind": "delete", "epochs": [[1, "train/1/1"]], "keep": []}
    assert not worker.closed
    gateway.sessions._on_worker(entry, {"kind": "deleted", "numbers": [1]})

    assert worker.closed
    assert gateway.store.epochs("train", unusable=True) == []
    assert gateway.sessions.entry("train") is not entry


def test_an_ended_session_whose_epochs_cannot_be_removed_holds_no_worker_for_long(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    worker: Any = entry.worker
    gateway.store.commit_epoch("train", entry.token, epoch(1, 10))
    gateway.sessions._on_worker(entry, {"kind": "ended"})

    gateway.timers.pop()()

    assert worker.closed


def test_a_session_that_its_worker_finds_abandoned_is_ended_like_by_its_program(
    gateway: InlineGateway, entry: SessionEntry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker: Any = entry.worker
    gateway.store.commit_epoch("train", entry.token, epoch(1, 10))

    gateway.sessions._on_worker(entry, {"kind": "abandoned"})

    assert gateway.store.session("train").state == "ended"
    assert worker.told[-1] == {"kind": "delete", "epochs": [[1, "train/1/1"]], "keep": []}
    assert [r.getMessage() for r in caplog.records if "ended" in r.getMessage()] == [
        "session ended: nobody was attached to it for 600 s"
    ]


def test_a_session_to_which_a_client_is_just_coming_back_is_not_ended(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    entry.busy = True

    gateway.sessions._on_worker(entry, {"kind": "abandoned"})

    assert gateway.store.session("train").state == "active"
    assert not entry.ended


def test_a_session_that_is_being_saved_for_the_next_server_is_not_ended(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    gateway.drain = Drain(gateway)  # type: ignore[arg-type]
    gateway.drain.begin()

    gateway.sessions._on_worker(entry, {"kind": "abandoned"})

    assert gateway.store.session("train").state == "active"


def test_an_old_timer_leaves_the_session_of_the_same_name_alone(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    gateway.store.commit_epoch("train", entry.token, epoch(1, 10))
    gateway.sessions._on_worker(entry, {"kind": "ended"})
    gateway.sessions.close_worker(entry)
    gateway.store.create_session("train", INCARNATION, TOKEN_HASH, "a")
    successor: Any = RecordingWorker()
    entry.worker, entry.ended = successor, False

    gateway.timers.pop()()

    assert not successor.closed


def test_a_session_that_ends_during_the_shutdown_is_not_waited_for(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    gateway.drain = Drain(gateway)  # type: ignore[arg-type]
    gateway.drain.begin()
    assert gateway.code is None

    gateway.sessions._on_worker(entry, {"kind": "ended"})

    assert gateway.code == 0


def test_a_name_that_was_asked_for_in_vain_is_forgotten(gateway: InlineGateway) -> None:
    entry = gateway.sessions.entry("never")

    gateway.sessions.tidy(entry)

    assert gateway.sessions.entry("never") is not entry


def test_a_session_that_is_let_go_on_may_fail_as_often_as_a_new_one(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    worker: Any = entry.worker
    worker.in_hand = 7, "LAUNCH"
    entry.crashes.died(7, "LAUNCH", -11)

    gateway.sessions._on_death(entry, worker, -11, ready=True)
    row = gateway.store.session("train")
    assert (row.state, row.failed_seq) == ("parked", 7)
    gateway.store.unpark("train", row.token)

    assert not gateway.sessions.entry("train").crashes


def test_nothing_is_kept_of_a_session_that_had_crashed_and_then_ended(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    entry.crashes.died(7, "LAUNCH", -11)

    gateway.sessions._on_worker(entry, {"kind": "ended"})

    assert gateway.sessions.entry("train") is not entry


def test_deaths_of_a_session_are_remembered_while_it_has_no_worker(
    gateway: InlineGateway, entry: SessionEntry
) -> None:
    gateway.sessions.close_worker(entry)
    entry.crashes.died(7, "LAUNCH", -11)

    gateway.sessions.tidy(entry)

    assert gateway.sessions.entry("train") is entry


KILLED, SEGFAULT, FAILED = -9, -11, 1


@pytest.mark.parametrize(("code", "used"), [(KILLED, True), (SEGFAULT, False), (FAILED, False)])
def test_only_what_a_killed_worker_has_left_with_the_keeper_is_good_for_another(
    gateway: InlineGateway, entry: SessionEntry, code: int, used: bool
) -> None:
    worker: Any = entry.worker
    worker.in_hand = 7, ""

    gateway.sessions._on_death(entry, worker, code, ready=True)

    assert gateway.forgotten == ([] if used else [("train", 1)])


@pytest.mark.parametrize("how", ["ended", "taken over", "restarted"])
def test_what_a_worker_has_left_is_given_back_when_its_session_is_over_for_us(
    gateway: InlineGateway, entry: SessionEntry, how: str
) -> None:
    worker: Any = entry.worker
    worker.process.returncode = None  # it still runs
    ended = []
    gateway.sessions.departures.await_end = (  # type: ignore[method-assign]
        lambda process, then=lambda code: None: ended.append(then)
    )

    if how == "ended":
        gateway.sessions._on_worker(entry, {"kind": "ended"})
    elif how == "taken over":
        gateway.sessions.keep_only({"train": 2})
    else:
        gateway.sessions.close_worker(entry)  # another worker goes on

    assert gateway.forgotten == []  # it could leave something still
    ended[0](0)
    assert gateway.forgotten == [("train", 0 if how == "restarted" else 1)]
