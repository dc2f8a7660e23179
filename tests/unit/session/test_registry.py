"""What a HELLO leads to."""

from __future__ import annotations

import pytest

from outlast.errors import (
    AuthenticationFailed,
    OutlastError,
    SessionBusy,
    SessionFailed,
    SessionFenced,
    SessionNotFound,
)
from outlast.session.ids import digest
from outlast.session.registry import Decision, Hello, Known, decide
from outlast.session.schema import Intent

MINE, OTHER = b"m" * 16, b"o" * 16


def hello(intent: Intent, incarnation: bytes = MINE, token: str = "token") -> Hello:
    return Hello("train", incarnation, token, intent)


def known(incarnation: bytes = MINE, state: str = "active", reason: str = "") -> Known:
    return Known(incarnation, digest("token"), state, reason)


def test_a_new_session_is_created():
    assert decide(hello(Intent.CREATE), None) is Decision.CREATE


def test_an_ended_session_may_be_created_anew():
    assert decide(hello(Intent.CREATE), known(OTHER, "ended")) is Decision.CREATE


@pytest.mark.parametrize("intent", [Intent.RESUME, Intent.ADOPT])
@pytest.mark.parametrize("row", [None, known(state="ended")])
def test_no_session_is_made_for_a_client_that_says_it_has_one(intent: Intent, row: Known | None):
    answer = decide(hello(intent), row)
    assert isinstance(answer, SessionNotFound)
    assert "'train'" in str(answer)


@pytest.mark.parametrize("intent", Intent)
def test_the_same_incarnation_resumes_whatever_it_says(intent: Intent):
    assert decide(hello(intent), known()) is Decision.RESUME


def test_a_client_that_was_replaced_is_fenced():
    assert isinstance(decide(hello(Intent.RESUME), known(OTHER)), SessionFenced)


def test_a_second_creator_is_told_that_the_session_is_taken():
    answer = decide(hello(Intent.CREATE), known(OTHER))
    assert isinstance(answer, SessionBusy)
    assert answer.retryable


def test_the_token_lets_another_client_adopt():
    assert decide(hello(Intent.ADOPT), known(OTHER)) is Decision.ADOPT


@pytest.mark.parametrize("token", ["", "Token", "token "])
def test_a_wrong_token_does_not(token: str):
    answer = decide(hello(Intent.ADOPT, token=token), known(OTHER))
    assert isinstance(answer, AuthenticationFailed)


@pytest.mark.parametrize("intent", Intent)
@pytest.mark.parametrize("incarnation", [MINE, OTHER])
def test_a_parked_session_says_why(intent: Intent, incarnation: bytes):
    row = known(incarnation, "parked", "call 7 LAUNCH killed it twice")
    answer = decide(hello(intent), row)
    assert isinstance(answer, SessionFailed)
    assert "call 7 LAUNCH" in str(answer)


@pytest.mark.parametrize("intent", Intent)
@pytest.mark.parametrize("row", [None, known(), known(OTHER), known(OTHER, "ended")])
def test_every_answer_is_a_decision_or_an_error_of_the_wire(intent: Intent, row: Known | None):
    answer = decide(hello(intent), row)
    assert isinstance(answer, Decision) or (isinstance(answer, OutlastError) and answer.code)
