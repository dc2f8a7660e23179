"""The first connection: no server, a late one, a fresh one."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from helpers.client_program import ClientProgram
from helpers.links import linked
from helpers.server_process import ServerProcess

from outlast.errors import ServerUnreachable

#: Nothing listens on the port for services that nobody uses.
NOWHERE = "tcp://127.0.0.1:9"


def test_without_a_server_the_first_connection_names_what_failed(tmp_path: Path) -> None:
    """C7, G3: endpoint, attempts and time are in the error, within the deadline."""
    started = time.monotonic()
    with (
        pytest.raises(ServerUnreachable) as caught,
        linked(NOWHERE, tmp_path, connect_timeout=1.0),
    ):
        pass
    assert time.monotonic() - started < 2.5
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.cu_result == 46
    assert caught.value.fields["endpoint"] == NOWHERE
    assert caught.value.fields["attempts"] > 1
    assert 0.5 < caught.value.fields["elapsed"] < 2.5
    for word in (NOWHERE, f"{caught.value.fields['attempts']} attempts", "LUPINE_SERVER"):
        assert word in str(caught.value)


def test_cuinit_fails_without_a_server_and_works_once_there_is_one(tmp_path: Path) -> None:
    """C7: 46 within the connect timeout, and the same process goes on later."""
    with ServerProcess(tmp_path / "state") as server:
        endpoint = server.endpoint
        server.terminate()
        program = """
started = time.monotonic()
say(int(cuda.cuInit(0)[0]), time.monotonic() - started < 5, cuda.last_error())
sys.stdin.readline()
say(int(cuda.cuInit(0)[0]))
begin()
say(*read(check(cuda.cuMemAlloc(4))).shape)
"""
        with ClientProgram(program, endpoint, tmp_path, LUPINE_CONNECT_TIMEOUT="3") as client:
            answer = client.expect()
            assert answer.startswith("46 True")
            assert endpoint in answer
            server.start()
            client.tell()
            assert client.expect() == "0"
            assert client.expect() == "1"
            assert client.end() == 0


def test_an_interrupt_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    """G3: Ctrl-C works within a second."""
    program = """
say("waiting")
cuda.cuInit(0)
"""
    with ClientProgram(program, NOWHERE, tmp_path, LUPINE_CONNECT_TIMEOUT="30") as client:
        assert client.expect() == "waiting"
        time.sleep(0.5)  # into the back-off
        client.signal(signal.SIGINT)
        started = time.monotonic()
        client.end()
        assert time.monotonic() - started < 1
        assert "KeyboardInterrupt" in client.errors
        assert "Exception ignored" not in client.errors


def test_an_interrupt_ends_the_wait_for_a_server_that_went_away(tmp_path: Path) -> None:
    """G3: the same in the middle of a program."""
    program = """
begin()
address = check(cuda.cuMemAlloc(4))
read(address)
say("working")
while True:
    read(address)
"""
    with (
        ServerProcess(tmp_path / "state") as server,
        ClientProgram(program, server.endpoint, tmp_path) as client,
    ):
        assert client.expect() == "working"
        server.kill()
        time.sleep(0.5)  # into the back-off
        client.signal(signal.SIGINT)
        started = time.monotonic()
        client.end()
        assert time.monotonic() - started < 1
        assert "KeyboardInterrupt" in client.errors
        assert "Exception ignored" not in client.errors


@pytest.mark.parametrize("starts", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_a_client_that_comes_with_the_server_always_gets_in(tmp_path: Path, starts: int) -> None:
    """C7: no race between the first listen and the first connection."""
    with ServerProcess(tmp_path / "first") as first:
        endpoint = first.endpoint
    for number in range(starts):
        server = ServerProcess(tmp_path / f"state{number}")
        server.endpoint = endpoint
        server.spawn()
        try:
            with linked(endpoint, tmp_path, connect_timeout=15.0) as link:
                assert link.devices
        finally:
            server.kill()
