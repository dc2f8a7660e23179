"""Programs and servers that end while the other side is dead, silent or refusing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.bare_client import BareClient
from helpers.broken_link import BrokenLink
from helpers.client_program import ClientProgram
from helpers.server_process import ServerProcess

from outlast.session.schema import PRIMARY_CONTEXT_BASE, Op

WORK = """
begin()
address = check(cuda.cuMemAlloc(4096))
check(cuda.cuMemsetD32(address, 1, 1024))
read(address)
say("working")
sys.stdin.readline()
check(cuda.cuMemsetD32(address, 2, 1024))
{end}
"""
ENDS = {"finished": ("sys.exit(5)", 5), "failed": ("raise ValueError('mine')", 1)}


class Outage:
    """What has happened to the server's side."""

    def __init__(self, server: ServerProcess, proxy: BrokenLink) -> None:
        self._server = server
        self._proxy = proxy

    def dead(self) -> None:
        self._server.kill()
        self._proxy.close()

    def silent(self) -> None:
        self._proxy.freeze()

    def refusing(self) -> None:
        """A server that does not know the session."""
        self._server.kill()
        self._server.state = self._server.state.with_name("empty")
        self._server.start()

    def stopped(self) -> None:
        for pid in [self._server.pid, *self._server.workers()]:
            os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("outage", ["dead", "silent", "refusing", "stopped"])
@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_in_time_whatever_became_of_its_server(
    tmp_path: Path, outage: str, end: str
) -> None:
    """G4: with its own exit code, and without a word about ignored exceptions."""
    last, code = ENDS[end]
    with (
        ServerProcess(tmp_path / "state") as server,
        BrokenLink(server.endpoint) as proxy,
        ClientProgram(
            WORK.format(end=last), proxy.endpoint, tmp_path, "ending", LUPINE_RELAY="1"
        ) as client,
    ):
        assert client.expect() == "working"
        strike: Callable[[], None] = getattr(Outage(server, proxy), outage)
        strike()
        client.tell()
        started = time.monotonic()
        assert client.end() == code
        assert time.monotonic() - started < 2.5
        assert "Exception ignored" not in client.errors
        assert ("ValueError: mine" in client.errors) == (end == "failed")


@pytest.mark.parametrize("outage", ["dead", "silent", "stopped"])
def test_an_interrupted_program_ends_in_time(tmp_path: Path, outage: str) -> None:
    """G4: Ctrl-C while a call waits for the lost server."""
    with (
        ServerProcess(tmp_path / "state") as server,
        BrokenLink(server.endpoint) as proxy,
        ClientProgram(
            WORK.format(end="read(address)"), proxy.endpoint, tmp_path, LUPINE_RELAY="1"
        ) as client,
    ):
        assert client.expect() == "working"
        strike: Callable[[], None] = getattr(Outage(server, proxy), outage)
        strike()
        client.tell()
        time.sleep(0.3)  # into the call
        client.signal(signal.SIGINT)
        started = time.monotonic()
        client.end()
        assert time.monotonic() - started < 2.5
        assert "KeyboardInterrupt" in client.errors
        assert "Exception ignored" not in client.errors


def test_the_last_calls_of_a_program_reach_its_server(tmp_path: Path) -> None:
    """G4: the end of a program does not cut off what it has just sent."""
    program = """
begin()
address = check(cuda.cuMemAlloc(1 << 20))
say(int(address))
data = np.full(1 << 20, 7, np.uint8)
check(cuda.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
"""
    check = """
begin()
out = np.zeros(1 << 20, np.uint8)
check(cuda.cuMemcpyDtoH(out.ctypes.data, int(os.environ["ADDRESS"]), out.nbytes))
say(int((out == 7).sum()))
"""
    with ServerProcess(tmp_path / "state") as server:
        with ClientProgram(program, server.endpoint, tmp_path, "last") as client:
            address = client.expect()
            assert client.end() == 0
        with ClientProgram(check, server.endpoint, tmp_path, "last", ADDRESS=address) as successor:
            assert successor.expect() == str(1 << 20)
            assert successor.end() == 0


def test_a_closed_link_leaves_no_call_for_a_server_that_stops_right_then(tmp_path: Path) -> None:
    """E11: what a program did before its end is in the epoch of a SIGTERM just after it."""
    program = """
begin()
address = check(cuda.cuMemAlloc(1 << 20))
say(int(address))
sys.stdin.readline()
for value in range(3000):
    check(cuda.cuMemsetD32Async(address, value, 4, 0))
cuda.close()
import signal
os.kill(int(os.environ["SERVER"]), signal.SIGTERM)
"""
    check = """
begin()
say(read(int(os.environ["ADDRESS"]))[0])
"""
    with ServerProcess(tmp_path / "state", ["--checkpoint-interval", "0"]) as server:
        pid = str(server.pid)
        with ClientProgram(program, server.endpoint, tmp_path, "last", SERVER=pid) as client:
            address = client.expect()
            client.tell()
            assert client.end() == 0
        assert server.wait() == 0
        server.start()
        with ClientProgram(check, server.endpoint, tmp_path, "last", ADDRESS=address) as successor:
            assert successor.expect() == "2999"
            assert successor.end() == 0


def test_the_session_of_a_program_without_a_name_ends_with_it(tmp_path: Path) -> None:
    """G4: its worker goes at once, not after a timeout."""
    with ServerProcess(tmp_path / "state") as server:
        with ClientProgram("begin(); say('working')", server.endpoint, tmp_path) as client:
            assert client.expect() == "working"
            assert client.end() == 0
        deadline = time.monotonic() + 3
        while server.session_workers():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_server_ends_in_time_with_dead_peers_and_unsent_replies(
    tmp_path: Path, relay: bool
) -> None:
    """G4: what nobody reads any more does not hold it."""
    # Nobody of them is given up before: their replies are still to be sent.
    with ServerProcess(tmp_path / "state", ["--heartbeat-timeout", "60"]) as server:
        clients = [BareClient(server.endpoint, relay) for _ in range(4)]
        try:
            for client in clients:
                client.send(Op.PRIMARY_RETAIN, 0)
                client.bind(PRIMARY_CONTEXT_BASE)
                allocated = client.call(Op.MEM_ALLOC, 1 << 20)
                client.push()
                while not allocated.done:
                    assert client.pull(5)
                assert allocated.reply is not None
                for _ in range(30):
                    client.call(
                        Op.COPY_DTOH,
                        allocated.reply.value,
                        0,
                        1 << 20,
                        0,
                        out=memoryview(bytearray(1 << 20)),
                    )
                client.push()
            started = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - started < 10
        finally:
            for client in clients:
                client.__exit__()
