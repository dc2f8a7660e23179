"""Garbage, pickles and oversize frames at every port: refused, never loaded, never fatal."""

from __future__ import annotations

import os
import pickle
import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq
from helpers.kernels import Counter, begin
from helpers.links import driving
from helpers.server_process import ServerProcess

from outlast.config import ServeConfig
from outlast.errors import ConfigError
from outlast.session import wire
from outlast.session.schema import MESSAGES, PROTOCOL_VERSION, Intent, Kind
from outlast.shim import driver
from outlast.shim.link import SessionLink

GARBAGE = 10_000  # messages


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mknod, (self.marker, 0o600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hostile") / "state") as server:
        yield server


@pytest.fixture
def owner(server: ServerProcess, tmp_path: Path) -> Iterator[SessionLink]:
    """A session in use, whose worker's port is attacked."""
    with driving(server.endpoint, tmp_path) as link:
        begin()
        yield link


def worker_ports(server: ServerProcess) -> list[str]:
    """Return the endpoints at which the session's workers listen."""
    inodes = set()
    for pid in server.session_workers():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and columns[9] in inodes:  # it listens
            address, port = columns[1].split(":")
            assert address == "0100007F", "a worker listens beyond loopback"
            ports.append(f"tcp://127.0.0.1:{int(port, 16)}")
    return ports


def headers() -> list[bytes]:
    """Return a header of each kind that a client sends, with fields of the right form."""
    plain: dict[str, object] = {
        **dict.fromkeys(("u8", "u16", "u32", "u64", "i32"), 1),
        **dict.fromkeys(("f32", "f64"), 0.0),
        "b16": bytes(16),
        "b32": bytes(32),
        "str": "text",
        "ranges": [],
        "u64s": [],
        "json": {},
    }
    made = []
    for kind, spec in MESSAGES.items():
        values = {field.name: plain[field.type] for field in spec.fields}
        if kind is Kind.HELLO:
            values |= {"protocol": PROTOCOL_VERSION, "intent": int(Intent.RESUME)}
        made.append(wire.pack_message(kind, **values))
    return made


def send_all(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, messages: Sequence[list[bytes]]
) -> None:
    """Send messages over one connection and wait until all are written or it is refused."""
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.linger = 0
        dealer.sndtimeo = 2000
        dealer.connect(endpoint)
        for message in messages:
            try:
                dealer.send_multipart(message)
            except zmq.Again:
                return
            while dealer.poll(0):
                dealer.recv_multipart(zmq.NOBLOCK)
        dealer.poll(200)
    finally:
        dealer.close(0)


@pytest.fixture(params=["gateway", "worker"])
def port(request: pytest.FixtureRequest, server: ServerProcess, owner: SessionLink) -> str:
    if request.param == "gateway":
        return server.endpoint
    (endpoint,) = worker_ports(server)
    return endpoint


def assert_still_fine(server: ServerProcess, pids: Sequence[int]) -> None:
    """Check that no process has died and that the owner's session works."""
    counter = Counter()
    counter.increment()
    assert counter.value() == 1
    assert driver.statistics()["reconnects"] == 0
    assert list(pids) == [server.pid, *server.session_workers()]


def test_no_pickle_is_ever_loaded(
    server: ServerProcess,
    port: str,
    tmp_path: Path,
    zmq_context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """F1: as the only frame, as each frame of messages that look right, as their tails."""
    marker = tmp_path / "marker"
    bombs = [pickle.dumps(Bomb(marker), protocol) for protocol in range(6)]
    pids = [server.pid, *server.session_workers()]
    messages = []
    for bomb in bombs:
        messages += [[bomb], [b"", bomb], [bomb, bomb]]
        for header in headers():
            messages += [[header, bomb], [header, bomb, bomb], [header + bomb], [bomb, header]]
            messages.append([header[:4] + bomb])
        for kind in Kind:
            messages.append([wire.PREFIX.pack(wire.MAGIC, PROTOCOL_VERSION, kind) + bomb])
    send_all(zmq_context, port, messages)
    assert_still_fine(server, pids)
    assert not marker.exists()


def test_ten_thousand_random_frames_change_nothing(
    server: ServerProcess, port: str, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """F1: random bytes, and right headers with random bits turned over."""
    dice = random.Random(11)
    pids = [server.pid, *server.session_workers()]
    known = [header for header in headers() if header[3] != Kind.HELLO]
    messages = []
    for number in range(GARBAGE):
        if number % 2:
            frame = bytearray(dice.choice(known))
            for _ in range(dice.randrange(4)):
                frame[dice.randrange(4, len(frame))] ^= 1 << dice.randrange(8)
        else:
            frame = bytearray(dice.randbytes(dice.randrange(200)))
        tail = [dice.randbytes(dice.randrange(64)) for _ in range(dice.randrange(3))]
        messages.append([bytes(frame), *tail])
    send_all(zmq_context, port, messages)
    assert_still_fine(server, pids)


def test_random_calls_of_an_unattached_peer_change_nothing(
    server: ServerProcess, port: str, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """F1: the call stream itself."""
    dice = random.Random(12)
    pids = [server.pid, *server.session_workers()]
    messages = [
        [
            wire.PREFIX.pack(wire.MAGIC, PROTOCOL_VERSION, kind)
            + dice.randbytes(dice.randrange(120)),
            *[dice.randbytes(30)] * dice.randrange(2),
        ]
        for kind in (Kind.CALLS, Kind.REPLIES, Kind.HELLO)
        for _ in range(1000)
    ]
    send_all(zmq_context, port, messages)
    assert_still_fine(server, pids)


def test_an_oversize_frame_costs_its_sender_the_connection_and_nobody_else(
    server: ServerProcess, port: str, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """C9, F3: 64 MiB in one frame."""
    pids = [server.pid, *server.session_workers()]
    send_all(zmq_context, port, [[bytes(64 << 20)], [b"OL"]])
    assert_still_fine(server, pids)


def test_connections_that_speak_no_zeromq_change_nothing(server: ServerProcess, port: str) -> None:
    """F1: HTTP, TLS and noise."""
    pids = [server.pid, *server.session_workers()]
    address, _, number = port.removeprefix("tcp://").rpartition(":")
    for opening in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", random.randbytes(4096)):
        with socket.create_connection((address, int(number)), timeout=5) as connection:
            connection.sendall(opening)
            connection.settimeout(0.2)
            try:
                connection.recv(100)
            except (TimeoutError, ConnectionError):
                continue
    assert_still_fine(server, pids)


def test_the_default_is_to_listen_at_loopback_only(tmp_path: Path) -> None:
    """F1: whoever wants more has to say so."""
    assert ServeConfig.resolve({}, {}).bind.startswith("tcp://127.0.0.1:")
    with pytest.raises(ConfigError, match="--insecure"):
        ServeConfig.resolve({"bind": "tcp://0.0.0.0:14833"}, {})
