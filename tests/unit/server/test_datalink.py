"""The worker's port: when it looks for the next message, when it sleeps, whom it keeps."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import zmq
from helpers.server_process import assert_eventually

from outlast.messages import LOCAL_PIECE_BUFFER
from outlast.server import datalink
from outlast.server.datalink import DataLink
from outlast.server.drivers.base import Driver
from outlast.session import wire
from outlast.shim.transport import Transport

FOREVER = 60.0  # seconds


class IdleDevice:
    """A device that announces what the test tells it to."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.drained = 0

    def fileno(self) -> int:
        return self.descriptor

    def frame_memory(self, size: int) -> memoryview | None:
        """Return no memory of its own."""
        return None

    def drain(self) -> None:
        """Take in what was announced."""
        self.drained += os.eventfd_read(self.descriptor)


class Peer:
    """A link with one client, in one thread."""

    def __init__(self, link: DataLink, socket: zmq.Socket[bytes]) -> None:
        self.link = link
        self.socket = socket
        self.name = b""

    def attach(self) -> None:
        """Be the one that is attached."""
        self.socket.send(b"attach")
        assert_eventually(lambda: self.receive(0.05), "the first message comes")
        self.link.heard(self.name)

    def send(self, text: bytes) -> None:
        """Send a message; it is with the link when this returns."""
        self.socket.send(text)
        assert_eventually(self.link.has_more, "the message comes")

    def receive(self, timeout: float = 0.25) -> list[bytes]:
        """Let the link wait, and return what came."""
        self.link.receive(timeout, device=False)
        texts = [frames[0] for _, frames in self.link.messages]
        self.name = self.link.messages[-1][0] if texts else self.name
        self.link.messages.clear()
        return texts


Peers = Callable[[int], Peer]


@pytest.fixture
def device() -> Iterator[IdleDevice]:
    device = IdleDevice()
    yield device
    os.close(device.descriptor)


@pytest.fixture
def peers(device: IdleDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    """Make a link that may use so many processors, and its client."""
    made: list[Peer] = []
    context = zmq.Context()

    def make(processors: int = 1) -> Peer:
        monkeypatch.setattr(datalink, "SPIN", FOREVER)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
        link = DataLink(cast(Driver, device), 0.05, 5.0)
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(link.endpoints[0])
        made.append(Peer(link, socket))
        return made[-1]

    yield make
    for peer in made:
        peer.socket.close()
        peer.link.close()
    context.term()


def asleep_only() -> None:
    raise AssertionError("it should have slept")


def test_behind_a_message_the_next_one_is_looked_for(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.attach()
    peer.send(b"one")
    assert peer.receive() == [b"one"]
    # It comes only while the link looks: a link that slept would get nothing.
    once = iter([lambda: peer.socket.send(b"two")])
    monkeypatch.setattr(os, "sched_yield", lambda: next(once, lambda: None)())

    assert peer.receive()[0] == b"two"


def test_a_link_that_got_nothing_sleeps(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.attach()
    monkeypatch.setattr(peer.link, "_spin", 0.001)
    assert peer.receive() == []
    monkeypatch.setattr(os, "sched_yield", asleep_only)

    assert peer.receive() == []
    peer.send(b"one")
    assert peer.receive() == [b"one"]


def test_on_one_processor_a_link_always_sleeps(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS - 1)
    monkeypatch.setattr(os, "sched_yield", asleep_only)
    peer.attach()
    peer.send(b"one")
    assert peer.receive() == [b"one"]

    assert peer.receive() == []


def test_another_thread_may_wake_a_link_that_sleeps(peers: Peers) -> None:
    peer = peers(1)
    peer.link.heartbeat = FOREVER
    threading.Timer(0.05, peer.link.wake).start()

    peer.link.receive(datalink.SLICE, device=False)
    peer.link.receive(0.0, device=False)
    assert not peer.link.messages


def test_whoever_is_not_attached_is_heard_while_the_other_talks_all_the_time(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.attach()
    monkeypatch.setattr(os, "sched_yield", lambda: peer.socket.send(b"again"))
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.linger = 0
        other.connect(peer.link.endpoints[0])
        other.send(b"me too")
        peer.send(b"again")

        assert_eventually(lambda: b"me too" in peer.receive(), "the other one is heard")


def test_a_device_that_is_done_ends_the_wait(peers: Peers, device: IdleDevice) -> None:
    peer = peers()
    os.eventfd_write(device.descriptor, 1)
    peer.link.receive(FOREVER, device=True)
    assert device.drained == 1


def test_the_thread_that_stands_in_leaves_the_device_to_the_other(
    peers: Peers, device: IdleDevice
) -> None:
    peer = peers()
    peer.attach()
    os.eventfd_write(device.descriptor, 1)
    peer.link.stand_in(7, 3, 0.5)

    assert not device.drained
    assert peer.socket.poll(2000)
    assert wire.parse_message(peer.socket.recv_multipart())["busy_seq"] == 3


def test_nothing_is_sent_to_whoever_is_gone(peers: Peers) -> None:
    peer = peers()
    peer.attach()
    assert peer.link.send(peer.name, [b"a"])
    peer.socket.close()
    assert_eventually(lambda: not peer.link.send(peer.name, [b"b"]), "it notices", 5.0)
    assert not peer.link.send(b"nobody", [b"c"])
    assert peer.link.silent(peer.name)


def test_a_peer_that_reads_nothing_gets_everything_in_order_later(peers: Peers) -> None:
    peer = peers()
    peer.attach()
    frames = [[b"%d" % number, bytes([number]) * (1 << 20)] for number in range(64)]
    for each in frames:
        assert peer.link.send(peer.name, each)
    got = []
    while len(got) < len(frames):
        peer.receive(0.01)
        while peer.socket.poll(0):
            got.append(peer.socket.recv_multipart())
    assert got == frames


def test_what_a_peer_has_not_read_is_dropped_when_it_is_attached_no_more(peers: Peers) -> None:
    peer = peers()
    peer.attach()
    for _ in range(64):
        peer.link.send(peer.name, [b"n", bytes(1 << 20)])
    peer.link.forget()
    assert not peer.link.send(peer.name, [b"more"])


def test_garbage_costs_a_stranger_its_connection_and_nobody_else(peers: Peers) -> None:
    peer = peers()
    peer.attach()
    host, port = peer.link.endpoints[0].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(0.01)
        closed = []

        def is_closed() -> bool:
            peer.receive(0.01)
            try:
                closed.extend([] if stranger.recv(1 << 10) else [True])
            except TimeoutError:
                pass
            except ConnectionResetError:
                closed.append(True)
            return bool(closed)

        assert_eventually(is_closed, "the connection is closed")
    peer.send(b"one")
    assert peer.receive() == [b"one"]


def test_strangers_without_end_make_room_for_each_other(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datalink, "MOST_PEERS", 4)
    peer = peers()
    peer.attach()
    host, port = peer.link.endpoints[0].removeprefix("tcp://").split(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(12)]
    try:
        for _ in range(12):
            peer.receive(0.01)
        assert len(peer.link._peers) == 4
        peer.send(b"one")
        assert peer.receive() == [b"one"]
    finally:
        for stranger in strangers:
            stranger.close()


def test_what_is_on_its_way_stays_in_the_caches_at_both_ends(peers: Peers) -> None:
    link = peers().link
    transport = Transport(link.endpoints[0])
    try:
        assert_eventually(
            lambda: link.receive(0.05, device=False) or len(link._peers) == 2, "both are accepted"
        )
        ends = [*link._peers.values(), transport._socket]
        sizes = [end._connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in ends]
    finally:
        transport.close()

    # The system gives no more than its limit, and counts what it needs itself.
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    expected = min(LOCAL_PIECE_BUFFER, most)
    assert all(expected <= size <= 2 * LOCAL_PIECE_BUFFER for size in sizes)
