"""Sessions without a name whose program was killed: nobody can take them over, so they end."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from helpers.checkpoint_files import published
from helpers.client_program import ClientProgram
from helpers.server_process import ServerProcess, assert_eventually

from outlast.checkpoint_providers.locations import session_directory
from outlast.session.store import Store

OPTIONS = ["--heartbeat-timeout", "4", "--checkpoint-interval", "0.2"]
WORK = """
begin()
address = check(cuda.cuMemAlloc(4))
check(cuda.cuMemsetD32(address, 4711, 1))
say(int(address), *read(address))
sys.stdin.readline()
say(*read(address))
"""
ATTACH = """
check(cuda.cuInit(0))
say("attached")
sys.stdin.readline()
"""


def abandoned(server: ServerProcess) -> list[str]:
    """Return the sessions that the server says it has ended because nobody came."""
    return re.findall(r"action=abandoned .*session=(\S+)", server.log_text())


def states(server: ServerProcess) -> dict[str, str]:
    """Return what the journal says of each session."""
    store = Store.open(f"sqlite:///{server.state / 'journal.db'}")
    try:
        return {row.id: row.state for row in store.sessions()}
    finally:
        store.close()


def kill(*clients: ClientProgram) -> None:
    for client in clients:
        client.signal(signal.SIGKILL)
        client.end()


def test_a_killed_program_without_a_name_holds_no_worker_for_ever(tmp_path: Path) -> None:
    """G4: its session ends after a while; those of a living and of a named program do not."""
    with (
        ServerProcess(tmp_path / "state", [*OPTIONS, "--linger", "2"]) as server,
        ClientProgram(WORK, server.endpoint, tmp_path) as living,
        ClientProgram(WORK, server.endpoint, tmp_path, "mine") as named,
        ClientProgram(WORK, server.endpoint, tmp_path) as killed,
    ):
        living.expect()
        address = named.expect().split()[0]
        killed.expect()
        assert_eventually(lambda: len(published(server.state)) == 3, "an epoch of each")
        kill(named)
        kill(killed)
        assert_eventually(lambda: abandoned(server), "the session is ended")
        (session,) = abandoned(server)
        folder = server.state / "checkpoints" / session_directory(session)
        assert_eventually(lambda: not folder.exists(), "its checkpoints are removed")
        assert_eventually(lambda: len(server.session_workers()) == 2, "its worker ends")
        assert sorted(states(server).values()) == ["active", "active", "ended"]
        living.tell()
        assert living.expect() == "4711"
        successor = f"begin()\nsay(*read({address}))"
        with ClientProgram(successor, server.endpoint, tmp_path, "mine") as adopter:
            assert adopter.expect() == "4711"
        assert abandoned(server) == [session]


def test_a_restarted_server_ends_what_killed_programs_without_a_name_have_left(
    tmp_path: Path,
) -> None:
    """G4: no worker has seen that nobody came; the named session stays."""
    with ServerProcess(tmp_path / "state", OPTIONS) as server:
        with (
            ClientProgram(WORK, server.endpoint, tmp_path) as worked,
            ClientProgram(ATTACH, server.endpoint, tmp_path) as idle,
            ClientProgram(WORK, server.endpoint, tmp_path, "mine") as named,
        ):
            for client in (worked, idle, named):
                client.expect()
            kill(worked, idle, named)
        assert server.terminate() == 0
        assert len(published(server.state)) >= 2
        server.arguments += ["--linger", "0.5"]
        server.start()
        assert_eventually(lambda: len(abandoned(server)) == 2, "both are ended")
        assert_eventually(
            lambda: sorted(states(server).values()) == ["active", "ended", "ended"], "the journal"
        )
        mine = session_directory("mine")
        assert_eventually(
            lambda: {epoch.parts[-3] for epoch in published(server.state)} == {mine},
            "only the named session's checkpoints are kept",
        )
        assert_eventually(lambda: not server.session_workers(), "no worker is left")
        assert states(server)["mine"] == "active"
        assert server.terminate() == 0
