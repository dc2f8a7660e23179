"""Processes that end while the gateway's loop goes on, and those that have to be made to."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.server.departures import Departures

DEADLINE = 20.0  # seconds


class Loop:
    """The part of a gateway that is used: what it watches is looked at when a test says so."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        self.timers: list[Callable[[], None]] = []

    def watch(self, source: int, handler: Callable[[], None]) -> None:
        self.watched[source] = handler

    def unwatch(self, source: int) -> None:
        del self.watched[source]

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def turn(self) -> None:
        """Wait until one of the sources is readable, and call its handler."""
        readable, _, _ = select.select(list(self.watched), [], [], DEADLINE)
        assert readable
        for source in readable:
            self.watched[source]()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def departures(loop: Loop) -> Departures:
    return Departures(loop)  # type: ignore[arg-type]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that ends by itself once its input is closed."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def let_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_the_end_of_a_process_is_told_when_it_comes(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    codes: list[int] = []
    departures.await_end(process, codes.append)
    assert codes == []

    let_end(process)
    loop.turn()

    assert codes == [7]
    assert not loop.watched


def test_a_process_that_has_ended_is_told_of_at_once(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    codes: list[int] = []
    let_end(process)
    process.wait(DEADLINE)

    departures.await_end(process, codes.append)

    assert codes == [7]
    assert not loop.watched


def test_a_process_that_does_not_end_in_time_is_killed(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    codes: list[int] = []
    departures.await_end(process, codes.append)
    process.send_signal(signal.SIGSTOP)

    loop.timers.pop()()
    loop.turn()

    assert codes == [-signal.SIGKILL]


def test_a_late_timer_finds_nothing_to_do(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    departures.await_end(process)
    let_end(process)
    loop.turn()

    loop.timers.pop()()

    assert process.returncode == 7


def test_a_process_is_waited_for_once(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    told: list[Any] = []
    departures.await_end(process, lambda code: told.append("first"))
    departures.await_end(process, lambda code: told.append("second"))

    let_end(process)
    loop.turn()

    assert told == ["first"]


def test_waiting_for_all_kills_those_that_stay(
    loop: Loop, departures: Departures, process: subprocess.Popen[bytes]
) -> None:
    codes: list[int] = []
    process.send_signal(signal.SIGSTOP)
    departures.await_end(process, codes.append)

    departures.wait(0.05)

    assert codes == [-signal.SIGKILL]
    assert not loop.watched


def test_without_a_descriptor_the_process_is_waited_for_right_away(
    loop: Loop,
    departures: Departures,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", refuse)
    codes: list[int] = []
    let_end(process)

    departures.await_end(process, codes.append)

    assert codes == [7]
