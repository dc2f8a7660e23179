"""Sessions in the journal: one owner, one incarnation, numbers that only grow."""

from __future__ import annotations

import threading

import pytest
from helpers.journal import (
    INCARNATION,
    OTHER_INCARNATION,
    TOKEN_HASH,
    TTL,
    create,
    epoch,
    register,
)

from outlast.errors import LeaseLost, SessionBusy, SessionNotFound, TokenSuperseded
from outlast.session.rows import Allocated, HandleCreated, SessionState
from outlast.session.store import Store


def test_a_new_session_starts_at_token_one_without_an_attachment(store):
    create(store)
    row = store.session("train")
    assert (row.owner, row.token, row.generation, row.state) == ("a", 1, 0, SessionState.ACTIVE)
    assert (row.incarnation, row.resume_token_hash) == (INCARNATION, TOKEN_HASH)


def test_creating_a_session_again_for_the_same_incarnation_changes_nothing(store):
    create(store)
    before = store.session("train")
    assert store.create_session("train", INCARNATION, b"other", "a") == before
    assert store.session("train") == before


def test_creating_a_session_that_another_incarnation_has_is_refused(store):
    create(store)
    with pytest.raises(SessionBusy, match="another client") as caught:
        store.create_session("train", OTHER_INCARNATION, TOKEN_HASH, "a")
    assert caught.value.owner == "a"
    assert store.session("train").incarnation == INCARNATION


def test_of_two_creators_at_once_one_gets_the_session(store, upgraded_url, clock):
    register(store, "a", "b")
    outcomes: dict[str, object] = {}
    together = threading.Barrier(2)

    def race(server_id: str, incarnation: bytes) -> None:
        mine = Store.open(upgraded_url)
        mine.clock = clock
        together.wait()
        try:
            outcomes[server_id] = mine.create_session("train", incarnation, b"h", server_id).owner
        except SessionBusy:
            outcomes[server_id] = "busy"
        finally:
            mine.close()

    racers = (("a", INCARNATION), ("b", OTHER_INCARNATION))
    threads = [threading.Thread(target=race, args=args) for args in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    winner = store.session("train").owner
    assert outcomes == {winner: winner, ({"a", "b"} - {winner}).pop(): "busy"}


def test_an_ended_session_is_replaced_and_its_numbers_go_on(store):
    token = create(store)
    store.attach("train", token, INCARNATION)
    store.commit_epoch("train", token, epoch(1, 100))
    store.record("train", token, [HandleCreated("stream", 16, 0, {}, 1)])
    store.end_session("train", token)
    row = store.create_session("train", OTHER_INCARNATION, TOKEN_HASH, "a")
    assert (row.state, row.incarnation) == (SessionState.ACTIVE, OTHER_INCARNATION)
    assert (row.token, row.generation, row.last_epoch) == (token + 1, 1, 1)
    assert store.handles("train") == []
    assert store.epochs("train") == []
    with pytest.raises(TokenSuperseded):
        store.record("train", token, [])


def test_an_unknown_session_is_not_found(store):
    register(store, "a")
    for action in (
        lambda: store.session("other"),
        lambda: store.claim("other", "a"),
        lambda: store.attach("other", 1, INCARNATION),
        lambda: store.record("other", 1, []),
        lambda: store.commit_epoch("other", 1, epoch(1, 1)),
    ):
        with pytest.raises(SessionNotFound, match="other"):
            action()


def test_an_ended_session_takes_no_attachment_no_claim_and_no_records(store):
    token = create(store)
    store.end_session("train", token)
    store.end_session("train", token)
    for action in (
        lambda: store.attach("train", token, INCARNATION),
        lambda: store.claim("train", "a"),
        lambda: store.park("train", token, 1, "late"),
        lambda: store.record("train", token, []),
    ):
        with pytest.raises(SessionNotFound, match="train"):
            action()


def test_sessions_are_listed_by_owner_and_state(store):
    create(store, "one", "a")
    create(store, "two", "b")
    assert [row.id for row in store.sessions()] == ["one", "two"]
    assert [row.id for row in store.sessions(owner="b")] == ["two"]
    store.end_session("one", store.session("one").token)
    assert [row.id for row in store.sessions("a", SessionState.ENDED)] == ["one"]
    assert store.sessions("a", SessionState.ACTIVE) == []


# -- claims ------------------------------------------------------------------------


def test_a_claim_by_the_owner_opens_a_new_token(store):
    token = create(store)
    assert store.claim("train", "a").token == token + 1
    assert store.session("train").token == token + 1


def test_a_claim_while_the_owner_lives_is_refused_and_says_until_when(store, clock):
    token = create(store)
    register(store, "b")
    clock.time += TTL / 4
    with pytest.raises(SessionBusy, match="server a at tcp://a:14833") as caught:
        store.claim("train", "b")
    assert (caught.value.owner, caught.value.retry_after) == ("a", TTL * 3 / 4)
    assert store.session("train").token == token


def test_a_claim_succeeds_once_the_owners_lease_has_expired(store, clock):
    token = create(store)
    clock.time += TTL
    register(store, "b")
    row = store.claim("train", "b")
    assert (row.owner, row.token) == ("b", token + 1)


def test_a_server_without_a_lease_claims_and_creates_nothing(store, clock):
    create(store)
    clock.time += TTL
    with pytest.raises(LeaseLost, match="server a holds no lease"):
        store.claim("train", "a")
    with pytest.raises(LeaseLost, match="stranger"):
        store.create_session("new", INCARNATION, TOKEN_HASH, "stranger")
    assert [row.id for row in store.sessions()] == ["train"]


def test_every_write_under_a_superseded_token_is_refused(store, clock):
    old = create(store)
    store.commit_epoch("train", old, epoch(1, 10))
    clock.time += TTL
    register(store, "b")
    new = store.claim("train", "b").token
    before = store.session("train")
    for action in (
        lambda: store.attach("train", old, INCARNATION),
        lambda: store.adopt("train", old, OTHER_INCARNATION),
        lambda: store.record("train", old, [Allocated(0, 1, 0, 0, 11)]),
        lambda: store.commit_epoch("train", old, epoch(2, 20)),
        lambda: store.mark_deleting("train", old, [1]),
        lambda: store.forget_epochs("train", old, [1]),
        lambda: store.park("train", old, 11, "late"),
        lambda: store.unpark("train", old),
        lambda: store.end_session("train", old),
    ):
        with pytest.raises(TokenSuperseded, match="superseded by 2 of server b") as caught:
            action()
        assert (caught.value.token, caught.value.current) == (old, new)
    assert store.session("train") == before
    assert store.allocations("train") == []
    assert [row.epoch for row in store.epochs("train")] == [1]


# -- attachments -------------------------------------------------------------------


def test_each_attachment_gets_the_next_generation(store):
    token = create(store)
    generations = [store.attach("train", token, INCARNATION).generation for _ in range(3)]
    assert generations == [1, 2, 3]
    assert store.session("train").generation == 3


def test_generations_go_on_under_a_new_token(store):
    store.attach("train", create(store), INCARNATION)
    token = store.claim("train", "a").token
    assert store.attach("train", token, INCARNATION).generation == 2


def test_another_incarnation_cannot_attach_but_can_adopt(store):
    token = create(store)
    with pytest.raises(SessionBusy, match="another client"):
        store.attach("train", token, OTHER_INCARNATION)
    adopted = store.adopt("train", token, OTHER_INCARNATION)
    assert (adopted.generation, adopted.resume_token_hash) == (1, TOKEN_HASH)
    with pytest.raises(SessionBusy):
        store.attach("train", token, INCARNATION)
    assert store.attach("train", token, OTHER_INCARNATION).generation == 2


def test_an_adoption_may_bring_a_new_resume_token(store):
    token = create(store)
    assert store.adopt("train", token, OTHER_INCARNATION, b"new").resume_token_hash == b"new"
    assert store.session("train").resume_token_hash == b"new"


def test_a_parked_session_names_its_call_until_it_is_unparked(store):
    token = create(store)
    store.park("train", token, 777, "killed by SIGSEGV")
    row = store.session("train")
    assert (row.state, row.failed_seq) == (SessionState.PARKED, 777)
    assert row.failed_reason == "killed by SIGSEGV"
    store.unpark("train", token)
    row = store.session("train")
    assert (row.state, row.failed_seq, row.failed_reason) == (SessionState.ACTIVE, None, None)
