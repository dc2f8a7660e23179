"""Retry policies end with the real error, at once when told to, and apart from each other."""

from __future__ import annotations

import threading
import time

import pytest
import tenacity

from outlast.errors import (
    AuthenticationFailed,
    JournalUnavailable,
    OutlastError,
    ServerUnreachable,
    SessionBusy,
    SessionLost,
)
from outlast.session import retry
from outlast.session.retry import RECONNECT, Backoff, Interrupted

QUICK = Backoff(initial=0.001, maximum=0.002, least=0.001)


class Attempts:
    """Fails with the given error so many times, then returns."""

    def __init__(self, error: BaseException, failures: int = 1_000_000) -> None:
        self.error = error
        self.failures = failures
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self.failures:
            raise self.error
        return "done"


def reconnecting(timeout: float, stop: threading.Event | None = None) -> tenacity.Retrying:
    return retry.reconnecting(timeout, stop or threading.Event(), QUICK)


@pytest.mark.parametrize(
    "error",
    [ServerUnreachable("gone"), SessionBusy("busy"), ConnectionResetError(), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
def test_what_may_pass_is_tried_again(error: Exception):
    attempts = Attempts(error, failures=3)
    assert reconnecting(5.0)(attempts) == "done"
    assert attempts.made == 4


def test_the_last_error_is_raised_as_it_is():
    error = SessionBusy("still busy")
    with pytest.raises(SessionBusy) as caught:
        reconnecting(0.02)(Attempts(error))
    assert caught.value is error
    assert not isinstance(caught.value, tenacity.RetryError)


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), SessionLost("lost"), KeyError("x"), OutlastError("?")],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_pass_is_raised_at_once(error: Exception):
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        reconnecting(5.0)(attempts)
    assert attempts.made == 1


def test_a_wrong_token_is_not_tried_again():
    attempts = Attempts(AuthenticationFailed("the token is wrong"))
    with pytest.raises(AuthenticationFailed):
        reconnecting(5.0)(attempts)
    assert attempts.made == 1


def test_a_set_event_interrupts_at_once():
    stop = threading.Event()
    stop.set()
    attempts = Attempts(SessionBusy("busy"))
    patient = retry.reconnecting(60.0, stop, Backoff(initial=30.0, maximum=30.0))
    began = time.monotonic()
    with pytest.raises(Interrupted):
        patient(attempts)
    assert time.monotonic() - began < 5.0
    assert attempts.made == 1


def test_an_event_set_while_it_waits_ends_the_wait():
    stop = threading.Event()
    patient = retry.reconnecting(60.0, stop, Backoff(initial=30.0, maximum=30.0))
    ended = threading.Event()

    def run() -> None:
        with pytest.raises(Interrupted):
            patient(Attempts(SessionBusy("busy")))
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    stop.set()
    assert ended.wait(5.0)
    thread.join(5.0)


def test_the_database_policy_tries_only_an_unavailable_journal():
    stop = threading.Event()
    attempts = Attempts(JournalUnavailable("locked"), failures=1)
    assert retry.database(5.0, stop)(attempts) == "done"
    refused = Attempts(SessionBusy("busy"))
    with pytest.raises(SessionBusy):
        retry.database(5.0, stop)(refused)
    assert refused.made == 1


def waits(backoff: Backoff, count: int) -> list[float]:
    """Seconds one client waits after each of its first failures."""
    strategy = backoff.wait()
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    result = []
    for attempt in range(1, count + 1):
        state.attempt_number = attempt
        result.append(strategy(state))
    return result


def bounds(backoff: Backoff, attempts: int) -> list[float]:
    """Return the longest wait that each attempt may have."""
    return [backoff.least + min(backoff.maximum, backoff.initial * 2**n) for n in range(attempts)]


def test_waits_lie_between_the_least_and_a_bound_that_grows_to_its_maximum():
    longest = bounds(RECONNECT, 12)
    for _ in range(50):
        for wait, bound in zip(waits(RECONNECT, 12), longest, strict=True):
            assert RECONNECT.least <= wait <= bound + 1e-9


def test_jitter_keeps_fifty_clients_apart_at_every_attempt():
    clients = [waits(RECONNECT, 12) for _ in range(50)]
    for attempt, bound in zip(zip(*clients, strict=True), bounds(RECONNECT, 12), strict=True):
        spread = max(attempt) - min(attempt)
        assert spread > (bound - RECONNECT.least) / 2, "they come in one burst"
        assert len(set(attempt)) > 45


def test_an_expected_server_is_looked_for_soon_at_first_and_then_as_any_other():
    policy = retry.reconnecting(
        60.0, threading.Event(), Backoff(initial=30.0, maximum=30.0, least=1.0), expected=True
    )
    state = tenacity.RetryCallState(policy, None, (), {})
    waits = {}
    for seconds in (0.0, retry.PROMPT_FOR / 2, retry.PROMPT_FOR + 1):
        state.outcome_timestamp = state.start_time + seconds
        waits[seconds] = policy.wait(state)
    *soon, late = waits.values()
    most = retry.PROMPT.least + retry.PROMPT.maximum
    assert all(retry.PROMPT.least <= wait <= most for wait in soon)
    assert late >= 1.0
