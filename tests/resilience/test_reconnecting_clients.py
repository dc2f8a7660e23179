"""Fifty clients that lose their server at the same moment do not come back at the same moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from helpers.broken_link import BrokenLink
from helpers.client_program import ClientProgram
from helpers.scripted_server import ScriptedServer
from helpers.server_process import assert_eventually

from outlast.session.schema import Kind

PROCESSES, LINKS = 5, 10
CLIENTS = PROCESSES * LINKS
#: Tries of each client, on average, for which the server is away, and how many of the first
#: ones come close together: all have lost it at once and wait only shortly.
TRIES, BUNCHED = 9, 5
WINDOW = 0.05  # seconds
#: Part of the clients that may come within one window; one in ten would be perfect.
SHARE = 0.4
#: A machine that stands still for a moment makes a burst of whatever was due meanwhile, so
#: one of so many outages has to be good. Without jitter none is.
OUTAGES = 4
#: More than the attachments that one server gives.
GENERATIONS = 1000

PROGRAM = f"""
from pathlib import Path
from outlast.config import ClientConfig
from outlast.shim.connection import connect

config = ClientConfig(
    server=os.environ["LUPINE_SERVER"],
    state_dir=Path(os.environ["LUPINE_STATE_DIR"]),
    heartbeat=20.0,
    heartbeat_timeout=60.0,
)
links = [connect(config) for _ in range({LINKS})]
say("attached")
sys.stdin.readline()
say(*{{link.reconnects for link in links}})
"""


@contextmanager
def fifty_clients(endpoint: str, folder: Path) -> Iterator[list[ClientProgram]]:
    """Attach fifty clients, in a few processes."""
    with ExitStack() as ends:
        processes = [
            ends.enter_context(ClientProgram(PROGRAM, endpoint, folder)) for _ in range(PROCESSES)
        ]
        for process in processes:
            assert process.expect() == "attached"
        yield processes


def largest_share(times: Sequence[float]) -> float:
    """Return the largest part of the clients that came within one window."""
    most = max(sum(start <= time < start + WINDOW for time in times) for start in times)
    return most / CLIENTS


def tries_of_an_outage(proxy: BrokenLink) -> list[float]:
    """Return when clients tried in vain, once their waits have grown."""
    before = proxy.connections
    assert_eventually(lambda: proxy.connections >= before + CLIENTS * TRIES, "many tries")
    return proxy.connected_at[before + CLIENTS * BUNCHED :]


def arrivals(server: ScriptedServer) -> list[float]:
    """Return when the clients' HELLOs came, once all are attached."""
    assert_eventually(lambda: server.seen[Kind.ATTACH] >= CLIENTS, "all clients are back")
    return server.times[Kind.HELLO]


def assert_each_came_back(processes: Sequence[ClientProgram], times: int) -> None:
    """End the clients; every link has been lost and found so often."""
    for process in processes:
        process.tell()
    for process in processes:
        assert process.expect() == str(times)
        assert process.end() == 0


def test_fifty_clients_of_a_restarted_server_come_back_apart(tmp_path: Path) -> None:
    """G3: at most two fifths of them in any 50 ms, in their tries and when it is back."""
    shares: list[float] = []
    with ExitStack() as ends:
        with ScriptedServer() as server:
            proxy = ends.enter_context(BrokenLink(server.endpoint))
            processes = ends.enter_context(fifty_clients(proxy.endpoint, tmp_path))
        for outage in range(1, OUTAGES + 1):
            tries = tries_of_an_outage(proxy)
            with ScriptedServer(generation=outage * GENERATIONS) as server:
                proxy.target = server.endpoint
                shares.append(max(largest_share(tries), largest_share(arrivals(server))))
                if shares[-1] <= SHARE or outage == OUTAGES:
                    assert_each_came_back(processes, outage)
                    break
    assert shares[-1] <= SHARE, f"they came in bursts: {shares}"
