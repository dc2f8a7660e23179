"""``outlast serve --take-over``: a server follows another, programs stand still for a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.keeper import keeper_pids
from helpers.program import Program, running, tape_of
from helpers.server_process import DEADLINE, DEVICE, ServerProcess, assert_eventually, kill

from outlast.server import notice
from outlast.server.locks import TAKE_OVER, LifetimeLock


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"]) as started:
        yield started
    for pid in keeper_pids(tmp_path / "state"):
        kill(pid)
    assert_eventually(lambda: not keeper_pids(tmp_path / "state"), "the keeper ends")


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    with running(server.endpoint, "train", tmp_path / "client") as started:
        yield started


def refused(server: ServerProcess, *arguments: str) -> str:
    """Start a server that cannot follow another; return what it says."""
    command = [sys.executable, "-m", "outlast", "serve", "--bind", server.endpoint]
    command += ["--state", str(server.state), "--device", DEVICE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode in (1, 2), done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_program_at_work_loses_and_repeats_nothing_through_two_of_them(
    server: ServerProcess, program: Program
) -> None:
    kernel, target = program.new_tape()
    written: list[int] = []
    over = threading.Event()

    def work() -> None:
        program.use_primary()
        while not over.is_set():
            digit = len(written) % 10
            program.append(kernel, target, [digit])
            program.sync()
            written.append(digit)

    working = threading.Thread(target=work)
    working.start()
    try:
        assert_eventually(lambda: written, "it works")
        for _ in range(2):
            assert server.replace() == 0
            seen = len(written)
            assert_eventually(lambda seen=seen: len(written) > seen, "it goes on")
    finally:
        over.set()
        working.join(DEADLINE)
    assert program.number(target) == tape_of(written)
    # Nothing was stored or done again: the memory itself went from hand to hand.
    assert program.link.statistics()["replayed_calls"] == 0
    assert not list((server.state / "checkpoints").rglob("manifest.json"))
    assert server.log_text().count("action=handed_over") == 2


def test_the_gateway_alone_is_replaced_and_its_worker_stays(
    server: ServerProcess, program: Program
) -> None:
    workers = server.session_workers()
    assert server.replace("--take-over", "gateway") == 0
    program.sync()
    assert server.session_workers() == workers
    assert program.reconnects() == 0
    assert server.terminate() == 0


def test_one_that_does_not_fit_says_why_and_changes_nothing(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    other = "tcp://127.0.0.1:1"
    assert f"come to {server.endpoint}, not to {other}" in refused(
        server, "--take-over", "--bind", other
    )
    database = f"sqlite:///{tmp_path / 'other.db'}"
    assert "its database is" in refused(server, "--take-over", "--database", database)
    assert "its provider is directory, not memory" in refused(
        server, "--take-over", "--provider", "memory"
    )
    assert "--take-over" in refused(server)  # without it: who has the folder, and what to do
    program.sync()
    assert program.reconnects() == 0
    assert notice.read(server.state) is not None


def test_one_whose_workers_have_no_device_leaves_the_running_server_alone(
    server: ServerProcess, program: Program
) -> None:
    follower = server.follower()
    follower.environment = {"LUPINE_EMULATED_MEMORY": "nonsense"}
    follower.log = server.state.parent / "follower.log"
    process = follower.spawn()
    assert process.wait(DEADLINE) == 1
    follower._close()
    assert "outlast: LUPINE_EMULATED_MEMORY must be" in follower.log_text()
    program.sync()
    assert program.reconnects() == 0


def test_of_two_at_once_one_serves(server: ServerProcess, program: Program) -> None:
    followers = [server.follower() for _ in range(2)]
    for number, follower in enumerate(followers):
        follower.log = server.state.parent / f"follower{number}.log"
        follower.spawn()
    try:
        assert server.wait() == 0
        processes = [f.process for f in followers if f.process is not None]
        assert_eventually(lambda: any(p.poll() is not None for p in processes), "one gives up")
        (loser,) = [f for f in followers if f.process is not None and f.process.poll() is not None]
        (winner,) = [f for f in followers if f is not loser]
        assert loser.process is not None
        if loser.process.returncode:
            assert f"process {winner.pid} is about to take over" in loser.log_text()
        # Else it was the other that came so late that it followed this one.
        loser._close()
        program.sync()
        assert winner.process is not None
        assert winner.process.poll() is None
    finally:
        for follower in followers:
            follower.kill()


def test_while_one_is_about_to_take_over_no_other_does(
    server: ServerProcess, program: Program
) -> None:
    turn = LifetimeLock(server.state / TAKE_OVER)
    assert turn.try_acquire()
    try:
        assert f"process {os.getpid()} is about to" in refused(server, "--take-over")
        program.sync()
        assert server.terminate() == 0
        # Not by the way of an ordinary start either, which would find the folder free.
        assert f"process {os.getpid()} is about to" in refused(server)
    finally:
        turn.release()
    server.start()
    program.sync()


def test_where_no_server_runs_it_starts_as_usual(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "state", ["--take-over"]) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        program.sync()
        assert server.terminate() == 0
        assert notice.read(server.state) is None


def test_a_server_that_saves_its_sessions_is_not_hurried_by_a_follower(
    server: ServerProcess, program: Program
) -> None:
    """The order to hand over may come just after SIGTERM."""
    program.write(program.alloc(1 << 20), b"1" * 100)
    with server.paused():
        os.kill(server.pid, signal.SIGTERM)
        assert_eventually(lambda: "action=drain_started" in server.log_text(), "it drains")
        os.kill(server.pid, signal.SIGUSR2)
    assert server.wait() == 0
    assert "action=drain_hastened" not in server.log_text()
    assert "action=saved" in server.log_text()
    server.start()
    program.sync()
