"""Many writers on one journal: no lock reaches a caller, nothing is lost or written twice."""

from __future__ import annotations

import selectors
import subprocess
import time
from contextlib import ExitStack

import pytest
from helpers.journal import create, journal_process
from sqlalchemy import select

from outlast.errors import JournalUnavailable
from outlast.session.models import allocations, handles
from outlast.session.store import Store

WRITERS = 4
DURATION = 2.5  # seconds


class Acknowledgements:
    """What writers printed: the seqs that the journal has acknowledged to each."""

    def __init__(self, writers: list[subprocess.Popen[str]]) -> None:
        self.writers = writers
        self.seen = [0] * len(writers)
        self._lines = [b""] * len(writers)
        self._selector = selectors.DefaultSelector()
        for index, writer in enumerate(writers):
            assert writer.stdout is not None
            self._selector.register(writer.stdout.buffer.raw, selectors.EVENT_READ, index)

    def read_until(self, deadline: float) -> None:
        """Collect until a time, or until every writer has closed its end."""
        while self._selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        data = key.fileobj.read(65536)
        if not data:
            self._selector.unregister(key.fileobj)
            return
        *lines, self._lines[key.data] = (self._lines[key.data] + data).split(b"\n")
        for line in lines:
            assert int(line) == self.seen[key.data] + 1
            self.seen[key.data] += 1


def sequence(store: Store, table, session_id: str) -> list[int]:
    query = select(table.c.created_seq).where(table.c.session == session_id)
    with store.engine.connect().execution_options(read_only=True) as connection:
        return sorted(connection.scalars(query))


def admin_reads(store: Store, sessions: list[str]) -> None:
    """Look at everything, as an administrator's command does."""
    assert [row.id for row in store.sessions()] == sessions
    assert len(store.servers()) == 1
    for session_id in sessions:
        rows = store.handles(session_id)
        assert [row.created_seq for row in rows] == list(range(1, len(rows) + 1))


def test_writers_and_a_reader_share_a_journal_and_one_may_be_killed(upgraded_url):
    store = Store.open(upgraded_url)
    sessions = [f"session-{index}" for index in range(WRITERS)]
    tokens = [create(store, session_id) for session_id in sessions]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(journal_process("write", upgraded_url, session_id, token))
            for session_id, token in zip(sessions, tokens, strict=True)
        ]
        acknowledged = Acknowledgements(writers)
        while not all(acknowledged.seen):
            acknowledged.read_until(time.monotonic() + 0.05)
            assert all(writer.poll() is None for writer in writers)
        end = time.monotonic() + DURATION
        while time.monotonic() < end:
            acknowledged.read_until(time.monotonic() + 0.1)
            admin_reads(store, sessions)
            if time.monotonic() > end - DURATION / 2 and writers[0].poll() is None:
                writers[0].kill()
                writers[0].wait()
        assert [writer.poll() is None for writer in writers] == [False, True, True, True]
        for writer in writers:
            writer.kill()
            writer.wait()
        acknowledged.read_until(time.monotonic() + 5)
    assert all(count > 1 for count in acknowledged.seen)
    for session_id, count in zip(sessions, acknowledged.seen, strict=True):
        written = sequence(store, handles, session_id)
        assert written == list(range(1, len(written) + 1))
        assert sequence(store, allocations, session_id) == written
        # The kill may come between a commit and its acknowledgement, never the other way.
        assert len(written) - count in (0, 1)
    store.close()


def test_a_journal_locked_for_too_long_is_unavailable_and_says_so(upgraded_url):
    holder = Store.open(upgraded_url)
    create(holder)
    waiting = Store.open(upgraded_url, lock_timeout=0.3)
    with holder.engine.begin() as connection:
        connection.execute(handles.delete())
        connection.exec_driver_sql("UPDATE sessions SET token = token")
        begun = time.monotonic()
        with pytest.raises(JournalUnavailable, match="lock") as caught:
            waiting.attach("train", 1, b"client process 1")
        assert 0.2 < time.monotonic() - begun < 5
    assert caught.value.retryable
    assert caught.value.__cause__ is not None
    assert waiting.attach("train", 1, b"client process 1").generation == 1
    waiting.close()
    holder.close()


def test_readers_do_not_wait_for_a_writer(upgraded_url):
    holder = Store.open(upgraded_url)
    token = create(holder)
    reader = Store.open(upgraded_url, lock_timeout=0.3)
    with holder.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sessions SET state = 'parked'")
        assert reader.session("train").token == token
        assert reader.session("train").state == "active"
        assert reader.epochs("train") == []
    assert reader.session("train").state == "parked"
    reader.close()
    holder.close()
