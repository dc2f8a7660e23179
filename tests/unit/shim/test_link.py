"""The link against a server that does not behave: it backs off, and it ends typed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.client_session import attach
from helpers.scripted_server import ScriptedServer

from outlast.errors import LinkClosed, LinkTimeout, ProtocolError, ServerUnreachable, SessionBusy
from outlast.session import ids, retry, wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.schema import Kind
from outlast.shim.link import SessionLink
from outlast.shim.settings import LinkSettings

#: Stands for a stream.
LANE = SimpleNamespace(handle=0, last=0, done=0, taken=0, finished=0)


@contextmanager
def attached(endpoint: str, **settings: Any) -> Iterator[SessionLink]:
    session = ClientSession("mine", ids.new_incarnation(), ids.new_token())
    link = SessionLink(session, LinkSettings(endpoint, **settings))
    link.open()
    try:
        yield link
    finally:
        link.close()


def unattached(endpoint: str) -> SessionLink:
    session = ClientSession("mine", ids.new_incarnation(), ids.new_token())
    return SessionLink(session, LinkSettings(endpoint, connect_timeout=0.5))


def refuse(_: object) -> list[bytes]:
    return [
        wire.pack_message(
            Kind.REFUSED, error=ProtocolError.code, retry_after=0.0, message="no such call"
        )
    ]


def answer_ping(message: wire.Message) -> list[bytes]:
    return [wire.pack_pong(message["generation"], message["stamp"])]


def assert_seen(server: ScriptedServer, kind: Kind, times: int) -> None:
    deadline = time.monotonic() + 10
    while server.seen[kind] < times:
        assert time.monotonic() < deadline, f"{times} {kind.name} came to the server"
        time.sleep(0.01)


def test_a_call_that_is_refused_at_each_attachment_is_tried_less_and_less_and_then_fails() -> None:
    with (
        ScriptedServer({Kind.CALLS: refuse}) as server,
        attached(server.endpoint, reconnect_timeout=1.0) as link,
    ):
        begin = time.monotonic()
        with pytest.raises(LinkTimeout, match=r"does not get on.*no such call"):
            link.query(Op.CTX_SYNC)
        assert 1.0 <= time.monotonic() - begin < 5.0
        assert server.seen[Kind.HELLO] < 12


def test_a_server_that_said_good_bye_is_expected_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(message: wire.Message) -> list[bytes]:
        again = server.seen[Kind.CALLS] > 1
        fields = {"generation": message["generation"], "reason": "another one comes"}
        return refuse(message) if again else [wire.pack_message(Kind.BYE, end=0, **fields)]

    def reconnecting(*arguments: Any, expected: bool) -> Any:
        expectations.append(expected)
        return policy(*arguments, expected=expected)

    expectations: list[bool] = []
    policy = retry.reconnecting
    monkeypatch.setattr(retry, "reconnecting", reconnecting)
    server = ScriptedServer({Kind.CALLS: leave})
    with (
        server,
        attached(server.endpoint, reconnect_timeout=0.2) as link,
        pytest.raises(LinkTimeout, match="does not get on"),
    ):
        link.query(Op.CTX_SYNC)
    # At the start, after the good-bye, and after a refusal.
    assert expectations[:3] == [False, True, False]


def test_an_unreachable_worker_is_reached_through_the_gateway() -> None:
    def welcome(message: wire.Message) -> list[bytes]:
        return [server.welcome("" if message["wishes"] else "tcp://127.0.0.1:1")]

    server = ScriptedServer({Kind.HELLO: welcome})
    with server, attached(server.endpoint):
        hellos = [m["wishes"] for m in server.messages if m.kind is Kind.HELLO]
        assert hellos == [0, 0, 1]


def test_a_server_of_another_kind_is_an_unreachable_one() -> None:
    with ScriptedServer({Kind.HELLO: lambda _: [b"220 mail.example ready"]}) as server:
        link = unattached(server.endpoint)
        with pytest.raises(ServerUnreachable, match="no session server answers") as caught:
            link.open()
        assert isinstance(caught.value, ConnectionError)
        assert server.endpoint in str(caught.value)


def test_the_reason_of_a_refusal_outlasts_an_attempt_that_found_no_answer_in_time() -> None:
    def busy_then_silent(_: object) -> list[bytes] | None:
        if server.seen[Kind.HELLO] > 1:
            return None
        reason = "session 'mine' has a live client"
        return [
            wire.pack_message(Kind.REFUSED, error=SessionBusy.code, retry_after=0.0, message=reason)
        ]

    server = ScriptedServer({Kind.HELLO: busy_then_silent})
    with server, pytest.raises(ServerUnreachable, match=r"refuses.*has a live client"):
        unattached(server.endpoint).open()


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(ServerUnreachable, match=r"host 'gpu' is not known \(Name or"):
        unattached("tcp://gpu:1").open()


def test_a_silent_server_is_asked_once_an_interval() -> None:
    with (
        ScriptedServer() as server,
        attached(server.endpoint, heartbeat=0.1, heartbeat_timeout=1.0),
    ):
        time.sleep(0.5)
        assert 1 <= server.seen[Kind.PING] <= 6


def test_calls_fail_typed_when_the_thread_of_the_link_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with ScriptedServer() as server, attached(server.endpoint) as link:

        def broken() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(link._caretaker, "_on_tick", broken)
        with pytest.raises(LinkClosed, match="has ended"):
            link.query(Op.CTX_SYNC)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda link: link.close(end=True), Kind.BYE),
        (lambda link: link.request_epoch(), Kind.EPOCH_REQUEST),
        (lambda link: link.reconnect(), Kind.HELLO),
    ],
    ids=["close", "epoch", "reconnect"],
)
def test_a_thread_that_waits_for_long_keeps_no_other_from_the_link(
    act: Callable[[SessionLink], None], kind: Kind
) -> None:
    def wait(link: SessionLink) -> None:
        with pytest.raises(LinkClosed):
            link.query(Op.CTX_SYNC)

    with ScriptedServer({Kind.PING: answer_ping}) as server, attached(server.endpoint) as link:
        link.bind(0)
        waiting = threading.Thread(target=wait, args=(link,))
        waiting.start()
        assert_seen(server, Kind.CALLS, 1)
        before = server.seen[kind]
        acting = threading.Thread(target=act, args=(link,))
        acting.start()
        assert_seen(server, kind, before + 1)
        acting.join(10)
        assert not acting.is_alive()
        link.close()
        waiting.join(10)
        assert not waiting.is_alive()


def test_bytes_of_a_copy_that_was_given_up_land_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server, attached(server.endpoint) as link:
        target = bytearray(8)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(link, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            link.read_into(0x1000, 8, LANE, 0, memoryview(target))
        (pending,) = link._session._pending.values()
        pending.settle(wire.Reply(wire.ReplyKind.OUTCOME, pending.number, data=b"\1" * 8))
        assert target == bytes(8)


def test_a_call_behind_others_that_are_not_sent_yet_fails_once_the_session_is_closed() -> None:
    link = unattached("tcp://127.0.0.1:1")
    session = link._session
    attach(session)
    link.send(Op.EVENT_DESTROY, 1)
    session.close(LinkClosed("a test's"))
    with pytest.raises(LinkClosed, match="a test's"):
        link.send(Op.EVENT_DESTROY, 2)
    assert session.next_seq == 2
