"""Which sessions without a worker the gateway ends, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.journal import INCARNATION, TOKEN_HASH, register

from outlast.errors import JournalUnavailable, OutlastError
from outlast.migrations import upgrade
from outlast.server.orphans import LOOKS, Orphans
from outlast.session.ids import random_session_id
from outlast.session.store import Store


class InlineGateway:
    """A gateway whose transactions run at once, and whose timers run when a test says so."""

    def __init__(self, store: Store, linger: float) -> None:
        self.config = SimpleNamespace(linger=linger)
        self.server_id = "a"
        self.draining = False
        self.down = False
        self.database = self
        self.held: set[str] = set()
        self.ended: list[str] = []
        self.sessions = SimpleNamespace(held=self.held.__contains__)
        self.attachments = SimpleNamespace(end_orphan=self.ended.append)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.orphans = Orphans(self)  # type: ignore[arg-type]
        self._store = store

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def submit(self, work: Any, resume: Callable[[Any, OutlastError | None], None]) -> None:
        if self.down:
            resume(None, JournalUnavailable("it does not answer"))
        else:
            resume(work(self._store), None)

    def look(self, times: int) -> None:
        """Let so many looks pass."""
        for _ in range(times):
            _, call = self.timers.pop()
            call()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'journal.db'}")
    upgrade(store.engine)
    register(store, "a", "b")
    yield store
    store.close()


@pytest.fixture
def gateway(store: Store) -> InlineGateway:
    gateway = InlineGateway(store, linger=30.0)
    gateway.orphans.watch()
    return gateway


def create(store: Store, name: str, owner: str = "a") -> str:
    store.create_session(name, INCARNATION, TOKEN_HASH, owner)
    return name


def test_an_anonymous_session_is_ended_once_the_whole_time_has_passed(
    gateway: InlineGateway, store: Store
) -> None:
    orphan = create(store, random_session_id())
    assert gateway.timers[-1][0] * LOOKS == gateway.config.linger

    gateway.look(LOOKS)
    assert gateway.ended == []
    gateway.look(1)
    assert gateway.ended == [orphan]


def test_the_time_begins_anew_after_a_client_has_been_there(
    gateway: InlineGateway, store: Store
) -> None:
    orphan = create(store, random_session_id())
    gateway.look(LOOKS)
    gateway.held.add(orphan)
    gateway.look(1)
    gateway.held.clear()

    gateway.look(LOOKS)

    assert gateway.ended == []


def test_nobody_elses_session_is_ended(gateway: InlineGateway, store: Store) -> None:
    create(store, "train")
    create(store, "anonymous-but-named")
    create(store, random_session_id(), owner="b")
    held = create(store, random_session_id())
    gateway.held.add(held)
    parked = store.session(create(store, random_session_id()))
    store.park(parked.id, parked.token, 1, "it kills its worker")
    ended = store.session(create(store, random_session_id()))
    store.end_session(ended.id, ended.token)

    gateway.look(3 * LOOKS)

    assert gateway.ended == []


def test_looks_in_vain_do_not_count(gateway: InlineGateway, store: Store) -> None:
    create(store, random_session_id())
    gateway.look(LOOKS)
    gateway.down = True
    gateway.look(LOOKS)
    gateway.down = False

    gateway.look(LOOKS)

    assert gateway.ended == []


def test_one_that_could_not_be_ended_is_tried_again_later(
    gateway: InlineGateway, store: Store
) -> None:
    orphan = create(store, random_session_id())

    gateway.look(2 * (LOOKS + 1))

    assert gateway.ended == [orphan, orphan]


def test_a_server_that_shuts_down_looks_no_more(gateway: InlineGateway) -> None:
    gateway.draining = True
    gateway.look(1)

    assert gateway.timers == []


def test_sessions_that_are_kept_for_ever_are_not_looked_for(store: Store) -> None:
    gateway = InlineGateway(store, linger=0.0)
    gateway.orphans.watch()

    assert gateway.timers == []
