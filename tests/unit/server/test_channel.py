"""The channel between gateway and worker: whole messages, and the other side's end."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from outlast.server.channel import MAX_MESSAGE, Channel, channel_pair


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    large = {"kind": "large", "data": "x" * (3 << 20)}
    sent: list[bool] = []
    sender = threading.Thread(target=lambda: sent.extend(map(ours.send, [{"kind": "a"}, large])))
    sender.start()
    assert other.ready(10)
    assert [other.receive(), other.receive()] == [{"kind": "a"}, large]
    sender.join()
    assert sent == [True, True]
    assert not other.ready()


def test_the_end_of_the_other_side_is_seen(pair: tuple[Channel, Channel]) -> None:
    ours, other = pair
    assert ours.send({"kind": "last"})
    ours.close()
    assert other.receive() == {"kind": "last"}
    assert other.ready(10)
    assert other.receive() is None
    assert not other.send({"kind": "late"})


def test_a_closed_end_is_at_its_end(pair: tuple[Channel, Channel]) -> None:
    ours, _ = pair
    ours.close()
    ours.close()
    assert ours.ready()
    assert ours.receive() is None
    assert not ours.send({"kind": "late"})
    with pytest.raises(OSError, match="closed"):
        ours.fileno()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!i", MAX_MESSAGE + 1),
        struct.pack("!i", -1),
        struct.pack("!i", 3) + b"{]}",
        struct.pack("!i", 2) + b"[]",
        struct.pack("!i", 9) + b"{",
        b"\0",
    ],
)
def test_what_is_no_message_counts_as_the_end(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs.detach())
    ours.sendall(data)
    ours.close()
    assert channel.receive() is None
    channel.close()


def test_a_worker_of_the_version_before_is_understood() -> None:
    """It writes by `multiprocessing.connection`; a new gateway may take it over."""
    ours, theirs = channel_pair()
    worker = Connection(os.dup(theirs))
    os.close(theirs)
    worker.send_bytes(b'{"kind":"ready"}')
    assert ours.receive() == {"kind": "ready"}
    assert ours.send({"kind": "stop"})
    assert worker.recv_bytes() == b'{"kind":"stop"}'
    worker.close()
    ours.close()
