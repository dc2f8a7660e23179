"""Worker processes as the gateway sees them: what cannot be started, what cannot be trusted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from outlast.errors import OutlastError, RestoreFailed
from outlast.server import pool as pool_module
from outlast.server.pool import WorkerPool
from outlast.server.workers import WorkerProcess


def refuse(*_: Any, **__: Any) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess.spawn("emulated")
    yield worker
    worker.close()


def test_a_signal_to_the_whole_group_does_not_end_a_worker_that_is_starting(
    worker: WorkerProcess,
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.process.send_signal(number)

    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.5)
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_process_to_be_had_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", refuse)

    with pytest.raises(RestoreFailed, match="Resource temporarily unavailable"):
        WorkerPool("emulated").take()


def test_a_spare_worker_that_cannot_be_started_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", refuse)
    pool = WorkerPool("emulated")

    pool.warm()

    monkeypatch.undo()
    worker = pool.take()
    worker.close()
    assert worker.process.returncode is not None


def test_a_spare_worker_that_died_is_replaced_and_leaves_nothing(worker: WorkerProcess) -> None:
    pool = WorkerPool("emulated")
    pool.warm()
    (dead,) = pool._spares
    dead.process.kill()
    dead.process.wait()

    taken = pool.take()

    taken.close()
    assert taken is not dead
    with pytest.raises(OSError, match="closed"):
        dead.channel.fileno()


def test_as_many_are_ready_as_are_asked_for_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST", 2)
    pool = WorkerPool("emulated")
    pool.warm(3)
    assert len(pool._spares) == 2
    pool.await_warm(30.0)
    first = pool._spares[0]

    (dismissed,) = pool.dismiss(left=1)

    assert dismissed.wait(30.0) == -signal.SIGKILL
    assert pool.take() is first
    first.close()


def test_a_worker_without_its_device_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("emulated:nonsense")
    with pytest.raises(RestoreFailed, match="no worker process"):
        pool.await_warm(30.0)
    pool.warm()
    try:
        with pytest.raises(RestoreFailed, match="at its start"):
            pool.await_warm(30.0)
    finally:
        pool.close()


def test_an_operation_that_does_not_exist_is_named_by_its_number(worker: WorkerProcess) -> None:
    worker._issued[0], worker._issued[1] = 7, 0xDEAD

    assert worker.in_hand == (7, "operation 57005")


def test_a_failed_start_without_a_code_of_its_own_may_be_tried_again(
    worker: WorkerProcess,
) -> None:
    errors: list[OutlastError | None] = []
    worker._started = lambda _, error: errors.append(error)

    worker._on_message({"kind": "restore_failed", "code": 0, "message": "no", "corrupt": False})

    assert [type(error) for error in errors] == [RestoreFailed]
    assert all(error is not None and error.retryable for error in errors)
