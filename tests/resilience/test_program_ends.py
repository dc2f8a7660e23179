"""Programs and servers that end while the other side is dead, silent or refusing."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest
from helpers.bare_client import BareClient
from helpers.broken_link import BrokenLink
from helpers.client_program import ClientProgram
from helpers.raw_peers import RawPeers, connections_owed
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session import wire
from outlast.session.operations import Op
from outlast.session.schema import PRIMARY_CONTEXT_BASE, Kind

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
#: Connections that nobody reads, among them several of each session.
PEERS, SESSIONS, ATTACHMENTS = 20, 3, 3
PIECE, PIECES = 1 << 20, 16  # bytes of a reply, replies of a session
PINGS = 1500
#: What a busy machine adds to what is measured from outside.
NOISE = 1.5  # seconds
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


def ask_for_much(client: BareClient) -> None:
    """Have a client's worker send far more than a connection takes in by itself."""
    client.send(Op.PRIMARY_RETAIN, 0)
    client.bind(PRIMARY_CONTEXT_BASE)
    allocated = client.call(Op.MEM_ALLOC, PIECE)
    client.push()
    while not allocated.done:
        assert client.pull(5)
    assert allocated.reply is not None
    for _ in range(PIECES):
        out = memoryview(bytearray(PIECE))
        client.call(Op.COPY_DTOH, allocated.reply.value, 0, PIECE, 0, out=out)
    client.push()


def unread_pings(peers: RawPeers) -> None:
    """Make a connection and have it owed more answers than it takes in."""
    ping = wire.pack_message(Kind.PING, generation=0, stamp=0)
    dealer = peers.connect(deaf=True)
    for _ in range(PINGS):
        dealer.send(ping)


def assert_owed(port: int, connections: int) -> None:
    """Wait until so many connections have something unsent."""
    assert_eventually(
        lambda: connections_owed(port) == connections, f"{connections} connections do not read"
    )


def assert_ends_in_time(server: ServerProcess) -> None:
    """Stop the server: behind its last save it is gone within two seconds."""
    assert server.terminate() == 0
    ended = time.time()
    saved = re.findall(r"^(\S+) .*action=saved\b", server.log_text(), re.MULTILINE)
    assert len(saved) == SESSIONS
    assert ended - datetime.fromisoformat(saved[-1]).timestamp() < 2 + NOISE


def test_a_server_ends_in_time_with_twenty_dead_peers_and_unsent_answers(tmp_path: Path) -> None:
    """G4: what nobody reads any more does not hold it."""
    # Nobody of them is given up before: what they are owed is still to be sent.
    with (
        ServerProcess(tmp_path / "state", ["--heartbeat-timeout", "60"]) as server,
        RawPeers(server.endpoint) as peers,
        ExitStack() as ends,
    ):
        port = int(server.endpoint.rpartition(":")[2])
        for number in range(SESSIONS * ATTACHMENTS):
            if number % ATTACHMENTS == 0:
                client = ends.enter_context(BareClient(server.endpoint, relay=True, deaf=True))
                ask_for_much(client)
            else:
                client.attach_anew()  # its worker sends everything again
            assert_owed(port, number + 1)
        for _ in range(PEERS - SESSIONS * ATTACHMENTS):
            unread_pings(peers)
        assert_owed(port, PEERS)
        assert_ends_in_time(server)


def test_a_server_ends_in_time_with_dead_peers_and_unsent_replies_of_its_workers(
    tmp_path: Path,
) -> None:
    """G4: the same with clients that are connected to their workers."""
    with (
        ServerProcess(tmp_path / "state", ["--heartbeat-timeout", "60"]) as server,
        ExitStack() as ends,
    ):
        for _ in range(SESSIONS):
            client = ends.enter_context(BareClient(server.endpoint, deaf=True))
            ask_for_much(client)
            assert_owed(int(client.transport.endpoint.rpartition(":")[2]), 1)
        assert_ends_in_time(server)
