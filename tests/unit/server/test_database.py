"""The gateway's database thread: every job ends within its time, and none is waited for in vain."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import JournalUnavailable, OutlastError
from outlast.server import database as module
from outlast.server.database import DatabaseThread
from outlast.session.store import Store


@pytest.fixture
def database(tmp_path: Path) -> Iterator[DatabaseThread]:
    thread = DatabaseThread(f"sqlite:///{tmp_path / 'journal.db'}")
    yield thread
    thread.close(2.0)


def deliver_until(database: DatabaseThread, results: list[Any], count: int) -> None:
    deadline = time.monotonic() + 10.0
    while len(results) < count:
        assert select.select([database.fileno()], [], [], deadline - time.monotonic())[0]
        database.deliver()


def down(_: Store) -> None:
    raise JournalUnavailable("it does not answer")


def test_jobs_behind_others_that_are_tried_in_vain_do_not_wait_for_each_of_them(
    database: DatabaseThread,
) -> None:
    ended: list[tuple[OutlastError | None, float]] = []
    begin = time.monotonic()
    for _ in range(20):
        database.submit(
            down, lambda _, error: ended.append((error, time.monotonic() - begin)), patience=0.5
        )

    deliver_until(database, ended, 20)

    assert all(isinstance(error, JournalUnavailable) for error, _ in ended)
    assert ended[-1][1] < 3.0


def test_what_a_job_waits_for_is_said_but_not_at_each_attempt(
    database: DatabaseThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_REPORT", 0.1)
    ended: list[Any] = []
    database.submit(down, lambda _, error: ended.append(error), patience=1.0)

    deliver_until(database, ended, 1)

    said = [r.getMessage() for r in caplog.records if r.name == module.__name__]
    assert said == ["waiting for the journal: it does not answer"]


def test_a_first_attempt_that_took_long_is_said_at_once(
    database: DatabaseThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_REPORT", 0.0)  # any attempt takes longer than that
    ended: list[Any] = []
    failures = iter([True, False])
    database.submit(
        lambda store: down(store) if next(failures) else None,
        lambda _, error: ended.append(error),
    )

    deliver_until(database, ended, 1)

    assert ended == [None]
    said = [r.getMessage() for r in caplog.records if r.name == module.__name__]
    assert said == ["waiting for the journal: it does not answer"]


def test_a_job_after_an_outage_is_done(database: DatabaseThread) -> None:
    ended: list[Any] = []
    database.submit(down, lambda _, error: ended.append(error), patience=0.0)
    database.submit(lambda _: "done", lambda result, _: ended.append(result))

    deliver_until(database, ended, 2)

    assert ended[1] == "done"


def test_an_unexpected_error_ends_the_server_instead_of_leaving_jobs_unanswered(
    database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    ended: list[Any] = []

    def broken(_: Store) -> None:
        raise ZeroDivisionError

    database.submit(broken, lambda *_: ended.append(None))

    with pytest.raises(JournalUnavailable, match="unexpected"):
        deliver_until(database, ended, 1)
