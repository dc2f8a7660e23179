"""A connection that speaks ZMTP itself, with ZeroMQ's sockets and with its own kind."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from helpers.server_process import assert_eventually

from outlast.zmtp_socket import ZmtpSocket

LIMIT = 2 << 20
MIB = 1 << 20


def pump(*ends: ZmtpSocket) -> None:
    for end in ends:
        end.flush()
        end.receive()
    time.sleep(0.001)


def made(connection: socket.socket, kind: bytes, courier: bool = False) -> ZmtpSocket:
    return ZmtpSocket(connection, kind, (b"DEALER", b"ROUTER"), LIMIT, 64 * MIB, courier)


@pytest.fixture(params=[False, True], ids=["alone", "courier"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[ZmtpSocket, ZmtpSocket]]:
    """Two connected ones."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = made(socket.create_connection(listener.getsockname()), b"DEALER", request.param)
        other = made(listener.accept()[0], b"ROUTER", request.param)
    yield one, other
    one.close()
    other.close()


def test_a_zeromq_router_is_spoken_to() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        end = made(socket.create_connection(("127.0.0.1", port)), b"DEALER")
        try:
            end.send([b"head", memoryview(b"p" * MIB)])
            assert_eventually(lambda: pump(end) or router.poll(0), "it comes")
            peer, *frames = router.recv_multipart()
            assert frames == [b"head", b"p" * MIB]
            router.send_multipart([peer, b"back", b"q" * MIB])
            assert_eventually(lambda: pump(end) or end.messages, "the answer comes")
            assert [bytes(frame) for frame in end.messages[0]] == [b"back", b"q" * MIB]
        finally:
            end.close()


def test_a_zeromq_dealer_is_spoken_to() -> None:
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        dealer.send_multipart([b"a", b"b"])
        end = made(listener.accept()[0], b"ROUTER")
        try:
            assert_eventually(lambda: pump(end) or end.messages, "it comes")
            end.send([b"c"])
            assert dealer.poll(2000)
            assert dealer.recv_multipart() == [b"c"]
        finally:
            end.close()


def test_messages_wait_until_the_peer_has_said_what_it_is() -> None:
    one, other = _connected()
    end = made(one, b"DEALER")
    try:
        end.send([b"early"])
        other.settimeout(0.2)
        said = other.recv(4096)
        with pytest.raises(TimeoutError):
            other.recv(4096)
        other.sendall(said.replace(b"DEALER", b"ROUTER"))
        assert_eventually(lambda: end.receive() or end.ready, "it is ready")
        assert other.recv(4096) == b"\0\x05early"
    finally:
        end.close()
        other.close()


def test_large_and_small_messages_stay_in_order(ends: tuple[ZmtpSocket, ZmtpSocket]) -> None:
    one, other = ends
    assert_eventually(lambda: pump(one, other) or one.ready, "they are ready")
    sent = []
    for number in range(40):
        frames = [b"%d" % number]
        if number % 3:
            frames.append(bytes([number]) * MIB)
        one.send(frames)
        sent.append(frames)
    got: list[list[bytes]] = []

    def all_came() -> bool:
        pump(one, other)
        while other.messages:
            got.append([bytes(frame) for frame in other.messages.popleft()])
        return len(got) == len(sent)

    assert_eventually(all_came, "all messages come")
    assert got == sent
    assert_eventually(lambda: not one.is_sending, "nothing is left")


def test_a_peer_that_goes_breaks_the_connection(ends: tuple[ZmtpSocket, ZmtpSocket]) -> None:
    one, other = ends
    assert_eventually(lambda: pump(one, other) or (one.ready and other.ready), "they are ready")
    other.close()
    assert_eventually(lambda: one.receive() or one.broken, "it is noticed")
    one.send([b"into the void"])
    one.send([b"head", bytes(MIB)])
    assert one.broken


def test_closing_waits_for_no_peer_that_reads_nothing(
    ends: tuple[ZmtpSocket, ZmtpSocket],
) -> None:
    one, other = ends
    assert_eventually(lambda: pump(one, other) or one.ready, "they are ready")
    for _ in range(40):
        one.send([b"head", bytes(MIB)])
    assert one.is_sending
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 1.0
    assert one.fileno() == -1


class Interrupted:
    """A connection in whose calls Ctrl-C comes once they have done their work."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection = connection
        self._name = name

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)
        if name != self._name:
            return method

        def interrupted(*args: Any) -> Any:
            method(*args)
            raise KeyboardInterrupt

        return interrupted


@pytest.mark.parametrize("name", ["send", "sendmsg", "recv_into"])
def test_what_ctrl_c_ended_in_the_middle_is_not_taken_up_again(
    ends: tuple[ZmtpSocket, ZmtpSocket], name: str
) -> None:
    one, other = ends
    assert_eventually(lambda: pump(one, other) or (one.ready and other.ready), "they are ready")
    other.send([b"something to read"])
    connection = Interrupted(one._connection, name)
    one._connection = connection  # type: ignore[assignment]
    one._receive_into = connection.recv_into
    message = [b"head", bytes(100_000)] if name == "sendmsg" else [b"head"]

    def use() -> None:
        one.send(message)
        while not one.receive():
            pass

    with pytest.raises(KeyboardInterrupt):
        use()
    one.send([b"more"])
    assert not one.receive()
    assert one.broken == "interrupted"
    assert not one.has_unsent


def test_a_port_that_nobody_listens_at_is_a_broken_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex(address)
    end = made(connection, b"DEALER")
    try:
        assert_eventually(lambda: pump(end) or end.broken, "it is noticed")
        assert end.broken == "Connection refused"
    finally:
        end.close()


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]
