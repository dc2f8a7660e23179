"""The order of a worker's intake: when the client has to hear what is done."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from outlast.server import intake
from outlast.server.datalink import DataLink
from outlast.server.executor import Executor
from outlast.server.intake import Intake
from outlast.session import wire
from outlast.session.host import REPLY_CACHE_LIMIT, HostSession
from outlast.session.schema import ReplyKind
from outlast.session.wire import Reply

CLIENT = b"client"


class Link:
    """What a link has read."""

    def __init__(self) -> None:
        self.messages: deque[tuple[bytes, list[Any]]] = deque()


class Device:
    """What an executor has under way."""

    coming = 0


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def host() -> HostSession:
    host = HostSession()
    host.peer = CLIENT
    return host


@pytest.fixture
def taken(link: Link, device: Device, host: HostSession) -> Intake:
    return Intake(cast(DataLink, link), host, cast(Executor, device), lambda peer: None)


def calls(size: int) -> tuple[bytes, list[Any]]:
    return CLIENT, [wire.pack_calls(0, 1, 1, 0, b""), memoryview(bytes(size))]


def test_the_client_hears_while_a_long_copy_still_arrives(taken: Intake, link: Link) -> None:
    piece = 1 << 20
    told = []
    for _ in range(20):
        link.messages.append(calls(piece))
        assert taken.next() is not None
        told.append(taken.time_to_tell())

    every = intake.TELL_BYTES // piece
    assert [n for n, due in enumerate(told, 1) if due] == list(range(every, 21, every))


def test_the_client_hears_after_many_small_calls(taken: Intake, host: HostSession) -> None:
    host.advance(intake.TELL_CALLS - 1)
    assert not taken.time_to_tell()
    host.advance(intake.TELL_CALLS)
    assert taken.time_to_tell()


def test_the_client_hears_before_calls_are_held_back(
    taken: Intake, link: Link, device: Device
) -> None:
    link.messages.append(calls(100))
    device.coming = REPLY_CACHE_LIMIT + 1

    assert taken.time_to_tell()
    assert taken.next() is None
    device.coming = 0
    assert taken.next() == calls(100)


def held(taken: Intake, link: Link, device: Device) -> Intake:
    """Hold calls back behind copies to the host that are under way."""
    device.coming = REPLY_CACHE_LIMIT + 1
    link.messages.append(calls(100))
    assert taken.next() is None
    assert taken.patience < intake.STANDSTILL
    return taken


def test_copies_that_stand_still_hold_calls_back_for_a_moment_only(
    taken: Intake, link: Link, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they wait for may be one of these calls."""
    held(taken, link, device)
    monkeypatch.setattr(intake, "STANDSTILL", 0.0)
    assert taken.next() is None
    assert taken.next() == calls(100)
    device.coming = 2 * REPLY_CACHE_LIMIT + 1
    link.messages.append(calls(100))
    assert taken.next() is None
    assert taken.next() is None
    assert taken.next() == calls(100)


def test_copies_that_make_progress_hold_calls_back(
    taken: Intake, link: Link, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(taken, link, device)
    monkeypatch.setattr(intake, "STANDSTILL", 0.0)
    for _ in range(5):
        device.coming += 1
        assert taken.next() is None


def test_a_client_that_acknowledges_nothing_is_not_let_through(
    taken: Intake, link: Link, device: Device, host: HostSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.reply(Reply(ReplyKind.OUTCOME, 1, 0, 0, bytes(intake.FEW + 1)))
    held(taken, link, device)
    monkeypatch.setattr(intake, "STANDSTILL", 0.0)
    for _ in range(5):
        assert taken.next() is None


def test_copies_that_stand_still_have_their_limit_too(
    taken: Intake, link: Link, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "STANDSTILL", 0.0)
    device.coming = intake.MOST_EXTRA + 2 * REPLY_CACHE_LIMIT
    link.messages.append(calls(100))
    for _ in range(100):
        assert taken.next() is None


def test_calls_wait_while_the_session_stands_still_and_keep_their_order(
    taken: Intake, link: Link, host: HostSession
) -> None:
    ping = CLIENT, [wire.pack_pong(0, 7)]
    host.still = True
    link.messages.extend([calls(1), ping, calls(2)])

    assert taken.next() == ping
    assert taken.next() is None
    link.messages.append(calls(3))
    assert taken.next() is None
    host.still = False
    assert [taken.next() for _ in range(4)] == [calls(1), calls(2), calls(3), None]
