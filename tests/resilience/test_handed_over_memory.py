"""SIGUSR2: the next server goes on with the very memory of the one before; nothing is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.keeper import keeper_pids
from helpers.program import Program, running
from helpers.server_process import DEADLINE, ServerProcess, assert_eventually, kill

from outlast.errors import KeeperError
from outlast.server.keeper.client import Keeper
from outlast.session.ids import random_session_id

SIZE = 3 << 20


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


def hand_over(server: ServerProcess) -> int:
    """Have the server leave device memory behind; return its exit code."""
    assert server.process is not None
    server.process.send_signal(signal.SIGUSR2)
    return server.wait(DEADLINE)


def held(state: Path) -> list[dict[str, object]]:
    """Return what the keeper has."""
    keeper = Keeper(state)
    try:
        return keeper.holdings()
    except KeeperError:
        return []
    finally:
        keeper.close()


def stored(state: Path) -> list[Path]:
    """Return the epochs on disk."""
    return list((state / "checkpoints").rglob("manifest.json"))


def test_memory_handles_and_variables_are_there_again_and_nothing_was_stored(
    server: ServerProcess, program: Program
) -> None:
    data = os.urandom(SIZE)
    address = program.alloc(SIZE)
    program.write(address, data)
    stream, event = program.stream(), program.event()
    program.record(event, stream)
    assert hand_over(server) == 0
    assert not stored(server.state)
    (entry,) = held(server.state)
    assert (entry["session"], entry["sealed"]) == ("train", True)
    server.start()
    assert program.read(address, SIZE) == data
    program.record(event, stream)
    program.free(address)
    program.sync()
    # The worker has it, and nobody could go on with what the keeper has.
    assert not [entry for entry in held(server.state) if entry["sealed"]]
    assert '"kept": true' in server.log_text() or "kept=True" in server.log_text()
    assert program.link.statistics()["replayed_calls"] == 0


def test_it_goes_on_for_many_restarts(server: ServerProcess, program: Program) -> None:
    address = program.alloc(SIZE)
    for turn in range(4):
        program.write(address, bytes([turn]) * SIZE)
        assert hand_over(server) == 0
        server.start()
        assert program.read(address, SIZE) == bytes([turn]) * SIZE
    assert program.link.statistics()["replayed_calls"] == 0


def test_a_kill_after_a_hand_over_goes_back_to_what_is_stored(
    server: ServerProcess, program: Program
) -> None:
    """The keeper has the memory still, and the digit that was added is in it."""
    kernel, tape = program.new_tape()
    program.append(kernel, tape, [1])
    program.checkpoint(server.state)
    program.append(kernel, tape, [2])
    assert hand_over(server) == 0
    server.start()
    program.append(kernel, tape, [3])
    assert program.number(tape) == 123
    server.kill()
    server.start()
    assert program.number(tape) == 123


def test_without_its_keeper_a_session_comes_from_its_log(
    server: ServerProcess, program: Program
) -> None:
    address = program.alloc(SIZE)
    program.write(address, b"1" * SIZE)
    assert hand_over(server) == 0
    for pid in keeper_pids(server.state):
        kill(pid)
    server.start()
    assert program.read(address, SIZE) == b"1" * SIZE


def test_a_seal_of_a_session_that_somebody_had_since_is_not_used(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    address = program.alloc(SIZE)
    program.write(address, b"1" * SIZE)
    assert hand_over(server) == 0
    (entry,) = held(server.state)
    database = server.state / "journal.db"
    change = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); "
    change += "d.execute('update sessions set token = token + 1'); d.commit(); d.close()"
    subprocess.run([sys.executable, "-c", change, str(database)], check=True)
    server.start()
    assert program.read(address, SIZE) == b"1" * SIZE
    assert program.link.statistics()["replayed_calls"] > 0
    assert entry["sealed"]


def test_a_session_that_was_handed_over_is_adopted_by_a_new_program(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as first:
        address = first.alloc(SIZE)
        first.write(address, b"1" * SIZE)
    assert hand_over(server) == 0
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as second:
        assert second.read(address, SIZE) == b"1" * SIZE


def test_a_session_whose_program_is_gone_is_stored_as_well(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Nobody has a log of what was done since the last epoch, if the keeper loses it."""
    with running(server.endpoint, "train", tmp_path / "client") as first:
        address = first.alloc(SIZE)
        first.write(address, b"1" * SIZE)
        first.checkpoint(server.state)
        first.write(address, b"2" * SIZE)
    assert hand_over(server) == 0
    assert held(server.state)
    for pid in keeper_pids(server.state):
        kill(pid)
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as second:
        assert second.read(address, SIZE) == b"2" * SIZE


def test_kept_memory_is_given_back_when_nobody_comes(tmp_path: Path) -> None:
    options = ["--checkpoint-interval", "0", "--keep-for", "0.5"]
    with (
        ServerProcess(tmp_path / "state", options) as server,
        running(server.endpoint, "train", tmp_path / "client") as program,
    ):
        address = program.alloc(SIZE)
        program.write(address, b"1" * SIZE)
        assert hand_over(server) == 0
        assert_eventually(lambda: not held(server.state), "it is given back", 10)
        server.start()
        assert program.read(address, SIZE) == b"1" * SIZE
    for pid in keeper_pids(tmp_path / "state"):
        kill(pid)


def test_memory_of_a_session_that_an_operator_ends_is_given_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        program.write(program.alloc(SIZE), b"1" * SIZE)
    assert hand_over(server) == 0
    assert held(server.state)
    command = [sys.executable, "-m", "outlast", "journal", "end", "train"]
    subprocess.run([*command, "--state", str(server.state)], check=True, capture_output=True)
    assert not held(server.state)


def test_memory_of_a_session_for_which_nobody_comes_back_is_given_back(tmp_path: Path) -> None:
    options = ["--checkpoint-interval", "0", "--linger", "0.5"]
    nameless = random_session_id()
    with ServerProcess(tmp_path / "state", options) as server:
        with running(server.endpoint, nameless, tmp_path / "client") as program:
            program.write(program.alloc(SIZE), b"1" * SIZE)
            assert hand_over(server) == 0
        assert held(server.state)
        server.start()
        assert_eventually(lambda: not held(server.state), "it is given back", 20)
    for pid in keeper_pids(tmp_path / "state"):
        kill(pid)


def test_the_list_names_what_is_kept(server: ServerProcess, program: Program) -> None:
    program.write(program.alloc(SIZE), b"1" * SIZE)
    command = [sys.executable, "-m", "outlast", "keeper", "list", "--state", str(server.state)]
    assert subprocess.check_output(command, text=True).strip() == "nothing is kept"
    assert hand_over(server) == 0
    head, row = subprocess.check_output(command, text=True).splitlines()
    assert head.split() == ["SESSION", "MIB", "EPOCH", "HOLDER", "LEFT", "STATE"]
    session, size = row.split()[:2]
    # A GPU's memory is had in chunks of 32 MiB.
    assert session == "train"
    assert int(size) in (3, 32)
    assert row.endswith("at rest: the next worker can go on with it")
    server.start()
