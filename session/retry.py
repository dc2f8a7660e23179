"""Retry policies, on tenacity: bounded, jittered, and waiting on an event, never asleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import tenacity

from outlast.errors import JournalUnavailable, OutlastError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with jitter."""

    initial: float = 0.05  # seconds
    maximum: float = 0.5  # seconds
    least: float = 0.02  # seconds

    def wait(self) -> tenacity.wait.wait_base:
        """Return tenacity's wait strategy for these numbers.

        The random part is as long as the wait itself, so that many clients of a server that
        comes back do not arrive together.
        """
        spread = tenacity.wait_random_exponential(multiplier=self.initial, max=self.maximum)
        return tenacity.wait_combine(tenacity.wait_fixed(self.least), spread)


#: How a client comes back to its server.
RECONNECT = Backoff()
#: How it does at first if that has said that it goes: another is about to take its place.
PROMPT = Backoff(initial=0.01, maximum=0.01, least=0.01)
PROMPT_FOR = 5.0  # seconds
#: How the gateway's database thread tries again.
DATABASE = Backoff(maximum=2.0)


class Interrupted(Exception):
    """The retrying side was told to stop while it waited."""


def _waiter(stop: threading.Event) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        if stop.wait(seconds):
            raise Interrupted

    return wait


def retryable(error: BaseException) -> bool:
    """Return whether trying again can help: typed errors say so, others never do."""
    return isinstance(error, OutlastError) and error.retryable


def reconnecting(
    timeout: float,
    stop: threading.Event,
    backoff: Backoff = RECONNECT,
    *,
    expected: bool = False,
) -> tenacity.Retrying:
    """Return the policy of a client's way back: until ``timeout`` seconds have passed.

    Where a server is ``expected`` within moments, it is looked for at the pace of `PROMPT` first.

    The last error is raised as it is (never a `tenacity.RetryError`); `Interrupted` when
    ``stop`` is set. Only errors that say they are retryable, or a silent server, are tried
    again.
    """
    usual, prompt = backoff.wait(), PROMPT.wait()

    def wait(state: tenacity.RetryCallState) -> float:
        soon = expected and (state.seconds_since_start or 0.0) < PROMPT_FOR
        return (prompt if soon else usual)(state)

    return tenacity.Retrying(
        stop=tenacity.stop_after_delay(timeout),
        wait=wait,
        retry=tenacity.retry_if_exception(
            lambda error: retryable(error) or isinstance(error, ConnectionError | TimeoutError)
        ),
        sleep=_waiter(stop),
        reraise=True,
    )


def database(
    timeout: float,
    stop: threading.Event,
    before_wait: Callable[[tenacity.RetryCallState], None] | None = None,
) -> tenacity.Retrying:
    """Return the policy of the database thread: `JournalUnavailable` is tried again."""
    return tenacity.Retrying(
        stop=tenacity.stop_after_delay(timeout),
        wait=DATABASE.wait(),
        retry=tenacity.retry_if_exception_type(JournalUnavailable),
        before_sleep=before_wait,
        sleep=_waiter(stop),
        reraise=True,
    )
