"""The worker's socket: when it looks for the next message, and when it sleeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import zmq

from outlast.server import datalink
from outlast.server.datalink import DataLink
from outlast.server.drivers.base import Driver

FOREVER = 60.0  # seconds


class IdleDevice:
    """A device that has nothing to announce."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.descriptor

    def drain(self) -> None:
        """Nothing was announced."""


class Peer:
    """A link with one client, in one thread."""

    def __init__(self, link: DataLink, socket: zmq.Socket[bytes]) -> None:
        self.link = link
        self.socket = socket

    def send(self, text: bytes) -> None:
        """Send a message; it is with the link when this returns."""
        self.socket.send(text)
        while not self.link.has_more():
            pass

    def receive(self, timeout: float = 0.25) -> list[bytes]:
        """Let the link wait, and return what came."""
        self.link.receive(timeout, device=False)
        texts = [frames[0] for _, frames in self.link.messages]
        self.link.messages.clear()
        return texts


Peers = Callable[[int], Peer]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    """Make a link that may use so many processors, and its client."""
    device = IdleDevice()
    made: list[Peer] = []
    context = zmq.Context()

    def make(processors: int) -> Peer:
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
    os.close(device.descriptor)


def asleep_only() -> None:
    raise AssertionError("it should have slept")


def test_behind_a_message_the_next_one_is_looked_for(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.send(b"one")
    assert peer.receive() == [b"one"]
    # It comes only while the link looks: a link that slept would get nothing.
    monkeypatch.setattr(os, "sched_yield", lambda: peer.socket.send(b"two"))

    assert peer.receive()[0] == b"two"


def test_a_link_that_got_nothing_sleeps(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    monkeypatch.setattr(os, "sched_yield", asleep_only)

    assert peer.receive() == []
    peer.send(b"one")
    assert peer.receive() == [b"one"]


def test_a_link_looks_no_longer_than_it_should_and_then_sleeps(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.send(b"one")
    assert peer.receive() == [b"one"]
    monkeypatch.setattr(peer.link, "_spin", 0.001)

    assert peer.receive() == []
    monkeypatch.setattr(os, "sched_yield", asleep_only)
    assert peer.receive() == []


def test_on_few_processors_a_link_always_sleeps(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS - 1)
    monkeypatch.setattr(os, "sched_yield", asleep_only)
    peer.send(b"one")
    assert peer.receive() == [b"one"]

    assert peer.receive() == []


def test_another_thread_may_wake_a_link_that_looks(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers(datalink.SPIN_PROCESSORS)
    peer.send(b"one")
    assert peer.receive() == [b"one"]
    monkeypatch.setattr(os, "sched_yield", peer.link.wake)

    assert peer.receive(FOREVER) == []
