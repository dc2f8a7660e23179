"""Epoch rows: a commit under the current token, and never less than two to fall back on."""

from __future__ import annotations

import pytest
from helpers.journal import INCARNATION, TOKEN_HASH, create, epoch, register

from outlast.errors import CheckpointError, TokenSuperseded


def numbers(rows):
    return [row.epoch for row in rows]


def commit(store, token, *seqs):
    return [
        store.commit_epoch("train", token, epoch(number, seq)) for number, seq in enumerate(seqs, 1)
    ]


def test_committed_epochs_are_listed_newest_first_with_the_token_that_wrote_them(store):
    token = create(store)
    commit(store, token, 100, 200, 300)
    rows = store.epochs("train")
    assert numbers(rows) == [3, 2, 1]
    assert {row.token for row in rows} == {token}
    assert store.session("train").last_epoch == 3


def test_the_recoverable_seq_is_that_of_the_older_of_the_two_newest(store):
    assert commit(store, create(store), 100, 200, 300) == [0, 100, 200]


def test_an_unverified_epoch_serves_no_restore(store):
    token = create(store)
    commit(store, token, 100, 200)
    unverified = epoch(3, 300, verified=False)
    assert store.commit_epoch("train", token, unverified) == 100
    assert numbers(store.epochs("train")) == [2, 1]
    assert store.commit_epoch("train", token, epoch(3, 300)) == 200
    assert numbers(store.epochs("train")) == [3, 2, 1]


def test_committing_the_same_epoch_again_is_the_same_as_once(store):
    token = create(store)
    assert commit(store, token, 100, 200) == [0, 100]
    assert store.commit_epoch("train", token, epoch(2, 200)) == 100
    assert numbers(store.epochs("train")) == [2, 1]


def test_an_epoch_number_cannot_be_used_for_another_epoch(store):
    token = create(store)
    commit(store, token, 100)
    with pytest.raises(
        CheckpointError, match="epoch 1 of session 'train' was committed at seq 100"
    ):
        store.commit_epoch("train", token, epoch(1, 150))
    assert [row.seq for row in store.epochs("train")] == [100]


def test_the_commit_of_a_superseded_server_is_refused(store):
    token = create(store)
    commit(store, token, 100)
    register(store, "b")
    store.release_server("a")
    newer = store.claim("train", "b").token
    with pytest.raises(TokenSuperseded):
        store.commit_epoch("train", token, epoch(2, 200))
    store.commit_epoch("train", newer, epoch(2, 150, location="train/2/2"))
    newest = store.epochs("train")[0]
    assert (newest.seq, newest.location) == (150, "train/2/2")


def test_after_a_fall_back_epochs_beyond_it_are_not_used_again(store):
    token = create(store)
    commit(store, token, 100, 200, 300)
    token = store.claim("train", "a", seq=100).token
    assert numbers(store.epochs("train")) == [1]
    assert numbers(store.epochs("train", unusable=True)) == [3, 2, 1]
    assert store.commit_epoch("train", token, epoch(4, 250)) == 100
    assert [row.seq for row in store.epochs("train")] == [250, 100]


def test_the_two_newest_verified_epochs_are_never_marked(store):
    token = create(store)
    commit(store, token, 100, 200, 300, 400)
    store.commit_epoch("train", token, epoch(5, 500, verified=False))
    marked = store.mark_deleting("train", token, [1, 2, 3, 4])
    assert numbers(marked) == [1, 2]
    assert all(row.deleting_since is not None for row in marked)
    assert numbers(store.epochs("train")) == [4, 3]


def test_marking_again_keeps_the_first_time(store):
    token = create(store)
    commit(store, token, 100, 200, 300)
    first = store.mark_deleting("train", token, [1])
    assert store.mark_deleting("train", token, [1]) == first


def test_only_marked_epochs_are_forgotten(store):
    token = create(store)
    commit(store, token, 100, 200, 300, 400)
    store.mark_deleting("train", token, [1])
    store.forget_epochs("train", token, [1, 2, 3])
    assert numbers(store.epochs("train", unusable=True)) == [4, 3, 2]


def test_the_epochs_of_an_ended_session_can_all_be_removed(store):
    token = create(store)
    commit(store, token, 100, 200)
    store.end_session("train", token)
    assert store.epochs("train") == []
    assert numbers(store.mark_deleting("train", token, [1, 2])) == [1, 2]
    store.forget_epochs("train", token, [1, 2])
    assert store.epochs("train", unusable=True) == []


def test_a_replaced_sessions_epochs_stay_marked_until_they_are_forgotten(store):
    token = create(store)
    commit(store, token, 100)
    store.end_session("train", token)
    row = store.create_session("train", INCARNATION, TOKEN_HASH, "a")
    store.commit_epoch("train", row.token, epoch(row.last_epoch + 1, 7))
    assert numbers(store.epochs("train")) == [2]
    assert numbers(store.epochs("train", unusable=True)) == [2, 1]
