"""The gateway's database threads: the socket loop never touches SQL.

One does all the journal's work in its order; another only renews the lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tenacity

from outlast.errors import JournalUnavailable, OutlastError
from outlast.session import retry
from outlast.session.store import Store

log = logging.getLogger(__name__)

#: When it is first said that the database does not answer, and how often then.
FIRST_REPORT = 1.0  # seconds
REPORT_INTERVAL = 10.0  # seconds

Work = Callable[[Store], Any]
#: Called in the gateway's thread with the result or the error.
Resume = Callable[[Any, OutlastError | None], None]


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work
    resume: Resume
    deadline: float


class DatabaseThread:
    """Runs journal transactions one after the other and hands the results back.

    Parameters
    ----------
    url : str
        The journal's database; opened for the first job.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[tuple[Resume, Any, OutlastError | None]] = deque()
        self._stop = threading.Event()
        self._report_at = 0.0
        self._broken = False
        #: What the last job met, if that was a database that does not answer.
        self._down: JournalUnavailable | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when results wait for `deliver`."""
        return self._event

    def submit(self, work: Work, resume: Resume, patience: float = 20.0) -> None:
        """Run ``work(store)`` in the thread, then ``resume(result, error)`` in `deliver`.

        An unavailable database is tried again until ``patience`` seconds from now, however
        many jobs are in front of this one.
        """
        self._jobs.put(_Job(work, resume, time.monotonic() + patience))

    def deliver(self) -> None:
        """Hand out the results that are there (in the gateway's thread).

        Raises
        ------
        JournalUnavailable
            The thread has ended by an error that it does not know: nothing comes any more.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        while self._done:
            resume, result, error = self._done.popleft()
            resume(result, error)
        if self._broken:
            raise JournalUnavailable("the journal's thread has ended by an unexpected error")

    def close(self, timeout: float) -> None:
        """Stop after the jobs in hand, at most ``timeout`` seconds later."""
        self._jobs.put(None)
        self._thread.join(timeout)
        self._stop.set()
        self._thread.join(0.2)
        if not self._thread.is_alive():
            os.close(self._event)

    def abandon(self) -> None:
        """Stop waiting for the database."""
        self._stop.set()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        as_told = False
        try:
            with contextlib.ExitStack() as stores:
                self._work(stores)
            as_told = True
        finally:
            self._broken = not as_told
            os.eventfd_write(self._event, 1)

    def _work(self, stores: contextlib.ExitStack) -> None:
        store: Store | None = None
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                for attempt in retry.database(self._patience(job), self._stop, self._report):
                    with attempt:
                        if store is None:
                            store = Store.open(self._url)
                            stores.callback(store.close)
                        result = job.work(store)
                self._down = None
            except OutlastError as failure:
                error = failure
                self._down = failure if isinstance(failure, JournalUnavailable) else None
            except retry.Interrupted:
                return
            self._done.append((job.resume, result, error))
            os.eventfd_write(self._event, 1)

    def _report(self, state: tenacity.RetryCallState) -> None:
        """Say what is waited for; not at once, as most of it passes, and not too often."""
        now = time.monotonic()
        if state.attempt_number == 1:
            self._report_at = state.start_time + FIRST_REPORT
        if state.outcome is not None and now >= self._report_at:
            self._report_at = now + REPORT_INTERVAL
            error = state.outcome.exception()
            log.warning("waiting for the journal: %s", error, extra={"action": "journal_wait"})

    def _patience(self, job: _Job) -> float:
        """Return for how long a job may be tried (0: once).

        Raises
        ------
        JournalUnavailable
            It has waited too long behind others that the database did not answer either.
        """
        left = job.deadline - time.monotonic()
        if left <= 0 and self._down is not None:
            raise self._down
        return max(0.0, left)
