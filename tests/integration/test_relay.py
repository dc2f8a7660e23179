"""All traffic through the gateway's one port: copies, launches, waits, restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.kernels import Counter, begin, check
from helpers.links import driving, linked
from helpers.server_process import ServerProcess, assert_eventually

from outlast.shim import driver
from outlast.shim.link import SessionLink

#: Who asks for the relay: the server's flag, or the client's variable.
ASKED_BY = {"server": ["--relay"], "client": []}


@pytest.fixture(params=ASKED_BY)
def relaying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "state", ASKED_BY[request.param]) as server:
        yield server


@pytest.fixture
def link(relaying: ServerProcess, tmp_path: Path) -> Iterator[SessionLink]:
    asks = not relaying.arguments  # only one of the two has to
    with driving(relaying.endpoint, tmp_path / "client", "mine", relay=asks) as link:
        begin()
        yield link


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_session_lives_on_over_one_port(relaying: ServerProcess, link: SessionLink) -> None:
    """Copies, launches and waits; then a stop, a kill and a lost worker."""
    data = np.random.default_rng(5).integers(0, 256, 5 << 20, np.uint8)
    out = np.zeros_like(data)
    address = check(driver.cuMemAlloc(data.nbytes))
    check(driver.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
    counter = Counter()
    stream = check(driver.cuStreamCreate(0))
    events = [check(driver.cuEventCreate(0)) for _ in range(2)]
    check(driver.cuEventRecord(events[0], stream))
    counter.increment()
    check(driver.cuEventRecord(events[1], stream))
    check(driver.cuStreamSynchronize(stream))
    check(driver.cuEventSynchronize(events[1]))
    assert check(driver.cuEventElapsedTime(*events)) >= 0
    assert counter.value() == 1
    assert "relay=True" in relaying.log_text()

    assert relaying.terminate() == 0
    relaying.start()
    counter.increment()
    assert counter.value() == 2
    relaying.kill()
    relaying.start()
    counter.increment()
    assert counter.value() == 3
    relaying.kill_workers()
    counter.increment()
    assert counter.value() == 4
    check(driver.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
    assert np.array_equal(out, data)
    assert link.reconnects == 3
    noticed = link.statistics()["stalls_s"][-1] < 4.5
    assert noticed, "the loss of a worker is noticed at once, not by silence"


def test_a_relayed_client_leaves_nothing_behind_at_the_gateway(tmp_path: Path) -> None:
    """No socket stays for those who have gone."""
    with ServerProcess(tmp_path / "state", ["--relay"]) as server:

        def come_and_go() -> None:
            with linked(server.endpoint, tmp_path) as link:
                assert link.devices
            assert_eventually(lambda: not server.session_workers(), "its worker ends")

        come_and_go()
        before = descriptors(server.pid)
        for _ in range(4):
            come_and_go()
        assert_eventually(
            lambda: descriptors(server.pid) <= before + 2, "the gateway closes its sockets", 10
        )


def test_clients_of_an_address_beyond_loopback_are_relayed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "state", ["--insecure"])
    server.endpoint = "tcp://0.0.0.0:0"
    with server, linked(server.endpoint, tmp_path / "client"):
        assert "relay=True" in server.log_text()
