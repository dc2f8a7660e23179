"""Clients that read slowly, late or never: nothing is lost and nobody else suffers."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.bare_client import BareClient
from helpers.client_program import ClientProgram
from helpers.kernels import begin, check
from helpers.links import driving
from helpers.server_process import ServerProcess, assert_eventually

from outlast.session.host import REPLY_CACHE_LIMIT
from outlast.session.operations import Op
from outlast.session.schema import PRIMARY_CONTEXT_BASE
from outlast.shim import driver

REPLIES, SIZE = 3000, 64 << 10
#: What the server may hold for one client beyond the cap: one batch of copies, and queues.
SLACK = 96 << 20

READ_MUCH = """
begin()
size = 256 << 20
address = check(cuda.cuMemAlloc(size))
check(cuda.cuMemsetD8(address, 0xA5, size))
check(cuda.cuCtxSynchronize())
out = np.zeros(size, np.uint8)
say("ready")
sys.stdin.readline()
say("reading")
check(cuda.cuMemcpyDtoH(out.ctypes.data, address, size))
assert (out == 0xA5).all()
say("read")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state", ["--heartbeat-timeout", "4"]) as server:
        yield server


def resident(pid: int) -> int:
    """Return the bytes of memory that a process alone holds (device memory is shared)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_client_that_reads_late_gets_every_reply_once_and_in_order(
    server: ServerProcess, relay: bool
) -> None:
    """C2: 3000 replies of 64 KiB, and nothing is read for 3 s."""
    with BareClient(server.endpoint, relay) as client:
        client.send(Op.PRIMARY_RETAIN, 0)
        client.bind(PRIMARY_CONTEXT_BASE)
        allocated = client.call(Op.MEM_ALLOC, REPLIES * 4 + SIZE)
        client.push()
        assert_eventually(lambda: client.pull(0.1) and allocated.done, "start")
        assert allocated.reply is not None
        address = allocated.reply.value
        for number in range(REPLIES):
            client.send(Op.MEMSET, address + number * 4, 0, 1, number, 4, 0)
        landed = np.zeros((REPLIES, SIZE), np.uint8)
        reads = [
            client.call(Op.COPY_DTOH, address + i * 4, 0, SIZE, 0, out=memoryview(landed[i]))
            for i in range(REPLIES)
        ]
        client.push()
        time.sleep(3)  # the case's own number: the client is busy elsewhere
        order = []
        deadline = time.monotonic() + 30
        left = list(enumerate(reads))
        while left:
            assert time.monotonic() < deadline
            assert client.pull(0.1)
            client.push()
            order += [i for i, read in left if read.done]
            left = [(i, read) for i, read in left if not read.done]
        assert order == list(range(REPLIES))
        assert {(str(read.error), read.reply.result) for read in reads if read.reply} == {
            ("None", 0)
        }
        assert np.array_equal(landed[:, :4].copy().view(np.int32).ravel(), np.arange(REPLIES))


def latencies(address: int, seconds: float) -> list[float]:
    """Return how long small round trips take."""
    out = np.zeros(1, np.int32)
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        check(driver.cuMemcpyDtoH(out.ctypes.data, address, 4))
        took.append(time.monotonic() - start)
    return took


@pytest.mark.parametrize("relay", ["0", "1"], ids=["direct", "relayed"])
def test_a_stopped_client_costs_the_server_little_and_others_nothing(
    server: ServerProcess, tmp_path: Path, relay: str
) -> None:
    """C2: memory stays under the cap, then the session is parked; it goes on afterwards."""
    with (
        driving(server.endpoint, tmp_path / "other"),
        ClientProgram(READ_MUCH, server.endpoint, tmp_path / "one", LUPINE_RELAY=relay) as stopped,
    ):
        begin()
        address = check(driver.cuMemAlloc(4))
        (other,) = server.session_workers()
        assert stopped.expect() == "ready"
        (worker,) = set(server.session_workers()) - {other}
        quiet = statistics.quantiles(latencies(address, 1), n=100)[98]
        before = resident(worker), resident(server.pid)
        stopped.tell()
        assert stopped.expect() == "reading"
        stopped.signal(signal.SIGSTOP)
        most = [0, 0]
        disturbed = []
        deadline = time.monotonic() + 20
        while "client detached" not in server.log_text():
            assert time.monotonic() < deadline, "the stopped client is still attached"
            disturbed += latencies(address, 0.2)
            most = [
                max(most[0], resident(worker) - before[0]),
                max(most[1], resident(server.pid) - before[1]),
            ]
        assert most[0] < REPLY_CACHE_LIMIT + SLACK
        assert most[1] < REPLY_CACHE_LIMIT + SLACK
        assert statistics.quantiles(disturbed, n=100)[98] < max(4 * quiet, 0.02)
        stopped.signal(signal.SIGCONT)
        assert stopped.expect() == "read"
        assert stopped.end() == 0


def test_a_client_that_is_stopped_for_ever_does_not_keep_the_server_from_ending(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C2: its session is saved like any other."""
    with ClientProgram(READ_MUCH, server.endpoint, tmp_path / "one", "stopped") as stopped:
        assert stopped.expect() == "ready"
        stopped.tell()
        assert stopped.expect() == "reading"
        stopped.signal(signal.SIGSTOP)
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 10
        assert "session saved" in server.log_text()
