"""Who may go on with a session: its restarted program, and nobody beside a live one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.client_program import ClientProgram
from helpers.server_process import ServerProcess

FILL = """
begin()
address = int(check(cuda.cuMemAlloc(4096)))
check(cuda.cuMemsetD32(address, 4711, 1024))
check(cuda.cuCtxSynchronize())
say(address)
sys.stdin.readline()
"""
GO_ON = """
begin()
say(*read(int(os.environ["ADDRESS"]), 1024)[::1023])
sys.stdin.readline()
"""
WORK = """
begin()
address = check(cuda.cuMemAlloc(4))
for number in range(1, 1_000_000):
    check(cuda.cuMemsetD32(address, number, 1))
    assert read(address)[0] == number
    if number == 10:
        say("working")
    if number > 10 and os.path.exists(os.environ["STOP"]):
        break
say(cuda.statistics()["reconnects"])
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state") as server:
        yield server


@pytest.mark.parametrize("restarted", [False, True], ids=["same server", "server restarted"])
@pytest.mark.parametrize("relay", ["0", "1"], ids=["direct", "relayed"])
def test_a_killed_program_goes_on_within_two_seconds(
    server: ServerProcess, tmp_path: Path, restarted: bool, relay: str
) -> None:
    """C1a: a new process with the same name and token gets the session, memory and all."""
    client = tmp_path / "client"
    with ClientProgram(FILL, server.endpoint, client, "mine", LUPINE_RELAY=relay) as first:
        address = first.expect()
        first.signal(signal.SIGKILL)
        first.end()
    if restarted:
        assert server.terminate() == 0
        server.start()
    time.sleep(0.1)  # the case's own number: the old connection may look open
    with ClientProgram(
        GO_ON, server.endpoint, client, "mine", LUPINE_RELAY=relay, ADDRESS=address
    ) as second:
        started = time.monotonic()
        assert second.expect() == "4711 4711"
        assert time.monotonic() - started < (4 if restarted else 3)
        second.tell()
        assert second.end() == 0


def test_a_stopped_program_gives_way_to_its_successor(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C1a: the old connection stands, but nobody has spoken on it for a while."""
    client = tmp_path / "client"
    with ClientProgram(FILL, server.endpoint, client, "mine") as first:
        address = first.expect()
        first.signal(signal.SIGSTOP)
        with ClientProgram(GO_ON, server.endpoint, client, "mine", ADDRESS=address) as second:
            assert second.expect() == "4711 4711"
            first.signal(signal.SIGCONT)
            first.tell()
            assert first.end() == 0
            second.tell()
            assert second.end() == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["same server", "server restarted"])
def test_a_stranger_is_refused_and_the_owner_notices_nothing(
    server: ServerProcess, tmp_path: Path, restarted: bool
) -> None:
    """C1b, F4: without the token the name of a session opens nothing."""
    stop = tmp_path / "stop"
    with ClientProgram(WORK, server.endpoint, tmp_path / "client", "mine", STOP=str(stop)) as owner:
        assert owner.expect() == "working"
        if restarted:
            server.kill()
            server.start()
        for token in ("", "0" * 32):
            with ClientProgram(
                "say(int(cuda.cuInit(0)[0]), cuda.last_error())",
                server.endpoint,
                tmp_path / "elsewhere",
                "mine",
                LUPINE_RESUME_TOKEN=token,
                LUPINE_CONNECT_TIMEOUT="1",
            ) as stranger:
                result, _, reason = stranger.expect().partition(" ")
                assert result != "0"
                assert "'mine'" in reason
                assert "token" in reason
                assert stranger.end() == 0
        stop.touch()
        assert owner.expect() == ("1" if restarted else "0")
        assert owner.end() == 0


def test_a_live_owner_keeps_its_session_from_a_second_process_with_the_token(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C1b: the same program started twice: the second one is told that it is busy."""
    stop = tmp_path / "stop"
    client = tmp_path / "client"
    with ClientProgram(WORK, server.endpoint, client, "mine", STOP=str(stop)) as owner:
        assert owner.expect() == "working"
        with ClientProgram(
            "say(int(cuda.cuInit(0)[0]), cuda.last_error())",
            server.endpoint,
            client,
            "mine",
            LUPINE_CONNECT_TIMEOUT="2",
        ) as second:
            result, _, reason = second.expect().partition(" ")
            assert result == "46"
            assert "live client" in reason
            assert second.end() == 0
        stop.touch()
        assert owner.expect() == "0"
        assert owner.end() == 0
