"""Handle and allocation rows: repeatable to write, cut back to an epoch, pruned behind it."""

from __future__ import annotations

import pytest
from helpers.journal import create, epoch
from sqlalchemy import func, select

from outlast.errors import JournalValueError
from outlast.session.models import allocations, handles
from outlast.session.rows import Allocated, Freed, HandleCreated, HandleDestroyed

STREAM = HandleCreated("stream", 16, 1, {"flags": 1, "priority": -1}, 10)
EVENT = HandleCreated("event", 32, 1, {"flags": 0}, 11)
MEMORY = Allocated(0x1000_0000_0000, 4096, 0, 0, 12)


def live(store):
    found = [(row.kind, row.id) for row in store.handles("train")]
    return found + [(row.address, row.created_seq) for row in store.allocations("train")]


def rows(store, table):
    with store.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def test_created_handles_and_allocations_are_live(store):
    store.record("train", create(store), [STREAM, EVENT, MEMORY])
    assert live(store) == [("stream", 16), ("event", 32), (MEMORY.address, 12)]
    assert store.handles("train")[0].recipe == {"flags": 1, "priority": -1}


def test_ended_ones_are_not(store):
    token = create(store)
    store.record("train", token, [STREAM, EVENT, MEMORY])
    store.record("train", token, [HandleDestroyed("stream", 16, 20), Freed(MEMORY.address, 21)])
    assert live(store) == [("event", 32)]
    assert store.allocation_at("train", MEMORY.address) is None


def test_a_begin_and_its_end_may_come_in_one_batch_in_any_order(store):
    ends = [HandleDestroyed("stream", 16, 20), Freed(MEMORY.address, 21)]
    store.record("train", create(store), [*ends, STREAM, MEMORY])
    assert live(store) == []


@pytest.mark.parametrize("repeats", [2, 3])
def test_recording_the_same_entries_again_changes_nothing(store, repeats):
    token = create(store)
    again = Allocated(MEMORY.address, 8192, 0, 0, 30)
    entries = [STREAM, EVENT, MEMORY, HandleDestroyed("stream", 16, 20), Freed(MEMORY.address, 21)]
    for _ in range(repeats):
        store.record("train", token, entries)
        store.record("train", token, [again])
    store.record("train", token, entries[:3])
    assert live(store) == [("event", 32), (MEMORY.address, 30)]
    assert (rows(store, handles), rows(store, allocations)) == (2, 2)


def test_an_address_is_used_again_after_its_free(store):
    token = create(store)
    for seq in range(100, 200, 10):
        store.record("train", token, [Allocated(4096, seq, 0, 0, seq), Freed(4096, seq + 1)])
    store.record("train", token, [Allocated(4096, 7, 0, 0, 300)])
    found = store.allocation_at("train", 4096 + 6)
    assert found is not None
    assert (found.size, found.created_seq) == (7, 300)


def test_a_handle_id_given_to_a_newer_object_names_that_one(store):
    token = create(store)
    newer = HandleCreated("stream", 16, 2, {"flags": 0}, 30)
    store.record("train", token, [STREAM, HandleDestroyed("stream", 16, 20), newer])
    store.record("train", token, [STREAM, HandleDestroyed("stream", 16, 20)])
    (row,) = store.handles("train")
    assert (row.generation, row.created_seq, row.recipe) == (2, 30, {"flags": 0})


def test_handles_of_different_kinds_may_share_an_id(store):
    token = create(store)
    store.record("train", token, [STREAM, HandleCreated("event", 16, 1, {}, 11)])
    store.record("train", token, [HandleDestroyed("event", 16, 12)])
    assert live(store) == [("stream", 16)]


def test_sessions_do_not_see_each_others_rows(store):
    token = create(store)
    create(store, "other")
    store.record("train", token, [STREAM, MEMORY])
    store.record("other", 1, [HandleDestroyed("stream", 16, 20), Freed(MEMORY.address, 20)])
    assert live(store) == [("stream", 16), (MEMORY.address, 12)]
    assert store.handles("other") == []


def test_a_batch_is_written_whole_or_not_at_all(store):
    token = create(store)
    with pytest.raises(JournalValueError):
        store.record("train", token, [STREAM, MEMORY, Freed(1 << 64, 20)])
    assert live(store) == []


def test_a_claim_cuts_the_rows_back_to_its_epoch(store):
    token = create(store)
    store.record("train", token, [STREAM, EVENT, MEMORY])
    store.commit_epoch("train", token, epoch(1, 15))
    late = HandleCreated("event", 48, 1, {}, 16)
    later = Allocated(0x2000_0000_0000, 4096, 0, 0, 17)
    ends = [HandleDestroyed("stream", 16, 18), Freed(MEMORY.address, 19)]
    store.record("train", token, [late, later, *ends])
    store.claim("train", "a")
    assert live(store) == [("stream", 16), ("event", 32), (MEMORY.address, 12)]


def test_replay_after_a_claim_writes_the_rows_again(store):
    token = create(store)
    entries = [STREAM, MEMORY, HandleDestroyed("stream", 16, 18), Freed(MEMORY.address, 19), EVENT]
    store.record("train", token, entries)
    token = store.claim("train", "a").token
    assert live(store) == []
    store.record("train", token, entries)
    assert live(store) == [("event", 32)]


def test_rows_that_ended_before_the_older_kept_epoch_are_pruned(store):
    token = create(store)
    store.record("train", token, [STREAM, EVENT, MEMORY, HandleDestroyed("stream", 16, 20)])
    store.record("train", token, [Freed(MEMORY.address, 60)])
    store.commit_epoch("train", token, epoch(1, 50))
    assert rows(store, handles) == 2
    store.commit_epoch("train", token, epoch(2, 100))
    assert (rows(store, handles), rows(store, allocations)) == (1, 1)
    store.commit_epoch("train", token, epoch(3, 150))
    assert (rows(store, handles), rows(store, allocations)) == (1, 0)
