"""Identifiers: what may name a session, and what is random."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ConfigError
from outlast.session import ids
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, PRIMARY_CONTEXT_BASE

NAMELESS = "anonymous-" + "0" * 24


@pytest.mark.parametrize("name", ["a", "train-7", "x" * 128, "über/alles", "a b"])
def test_printable_names_are_session_ids(name: str):
    assert ids.check_session_id(name) == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "\0", "a\tb", "\udcff", "\u200b"])
def test_other_names_are_refused(name: str):
    with pytest.raises(ConfigError, match="1 to 128 printable characters"):
        ids.check_session_id(name)


@given(st.text())
def test_a_session_id_is_accepted_or_a_config_error(name: str):
    try:
        accepted = ids.check_session_id(name)
    except ConfigError:
        return
    assert accepted.isprintable()
    assert accepted.encode().decode() == name


@pytest.mark.parametrize(
    ("make", "length"),
    [(ids.new_incarnation, 16), (ids.new_secret, 32), (ids.new_token, 43)],
)
def test_random_ids_have_their_length_and_differ(make, length: int):
    made = {make() for _ in range(100)}
    assert len(made) == 100
    assert {len(value) for value in made} == {length}


def test_random_session_ids_are_session_ids():
    made = {ids.random_session_id() for _ in range(100)}
    assert len(made) == 100
    assert all(ids.check_session_id(name) for name in made)


def test_random_session_ids_are_told_from_names():
    assert all(ids.is_anonymous(ids.random_session_id()) for _ in range(100))
    for name in ("train", "anonymous-", "anonymous-run", "anonymous-" + "0" * 25, "x" + NAMELESS):
        assert not ids.is_anonymous(name)
    assert ids.is_anonymous(NAMELESS)
    assert not ids.is_anonymous(NAMELESS + "\n")


def test_a_digest_is_the_same_of_text_and_bytes():
    expected = hashlib.sha256(b"secret").digest()
    assert ids.digest("secret") == ids.digest(b"secret") == expected


def test_primary_contexts_lie_below_every_other_handle():
    handles = [ids.primary_context(ordinal) for ordinal in range(64)]
    assert handles[0] == PRIMARY_CONTEXT_BASE
    assert len(set(handles)) == 64
    assert max(handles) < HANDLE_FIRST


@given(st.integers(0, 2**47), st.integers(1, 50))
def test_an_allocator_never_gives_a_handle_twice(first: int, count: int):
    allocator = ids.HandleAllocator(first)
    taken = [allocator.take() for _ in range(count)]
    assert taken[0] == max(first, HANDLE_FIRST)
    assert taken == list(range(taken[0], taken[0] + count * HANDLE_STEP, HANDLE_STEP))
