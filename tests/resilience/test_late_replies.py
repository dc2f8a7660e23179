"""Replies that come when their call has been given up: they are nobody else's answer."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from helpers.broken_link import BrokenLink, HoldBack
from helpers.kernels import Counter, begin, check
from helpers.links import driving
from helpers.sabotage import Sabotage, Size
from helpers.scripted_server import ScriptedServer
from helpers.server_process import ServerProcess, assert_eventually

from outlast.errors import ServerUnreachable
from outlast.session import ids, wire
from outlast.session.client import ClientSession
from outlast.session.operations import Op
from outlast.session.schema import Kind, ReplyKind
from outlast.session.wire import Message, Reply
from outlast.shim import driver
from outlast.shim.link import SessionLink
from outlast.shim.settings import LinkSettings

BEAT, SILENCE = 0.4, 1.5  # seconds
TIMES = {"heartbeat": BEAT, "heartbeat_timeout": SILENCE}


class GivenUp(Exception):
    """The program does not wait for its call any more."""


@pytest.fixture(scope="module")
def sabotage(tmp_path_factory: pytest.TempPathFactory) -> Sabotage:
    return Sabotage(tmp_path_factory.mktemp("sabotage"))


@pytest.fixture(scope="module")
def server(sabotage: Sabotage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state = tmp_path_factory.mktemp("server") / "state"
    options = ["--heartbeat", str(BEAT), "--heartbeat-timeout", str(SILENCE)]
    with ServerProcess(state, options, sabotage.environment) as server:
        yield server


@contextmanager
def given_up_after(wait: Callable[[], None]) -> Iterator[None]:
    """Raise `GivenUp` in the main thread, in the call that it makes, once ``wait`` returns."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise GivenUp

    def interrupt() -> None:
        wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, give_up)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def nothing_waits(link: SessionLink) -> bool:
    """Return whether no call and no query waits for an answer."""
    return not link._session._pending and not link._session._queries


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "relayed"])
def test_a_reply_that_comes_after_its_call_was_given_up_answers_no_other(
    server: ServerProcess, sabotage: Sabotage, tmp_path: Path, relay: bool
) -> None:
    """C9: the handler returns while the next call waits for its own answer."""
    sabotage.forget()
    with driving(server.endpoint, tmp_path, relay=relay, **TIMES) as link:
        begin()
        counter = Counter()
        counter.increment()
        with pytest.raises(GivenUp), given_up_after(sabotage.wait_held):
            driver.cuMemAlloc(Size.HELD)
        (late,) = link._session._pending.values()
        releaser = threading.Thread(target=release_under, args=(link, sabotage, 2))
        releaser.start()
        pointer = check(driver.cuMemAlloc(4096))
        releaser.join()
        assert late.done
        assert late.reply is not None
        assert late.reply.value not in (0, int(pointer))
        assert nothing_waits(link)
        counter.increment()
        assert counter.value() == 2
        data = bytearray(4096)
        check(driver.cuMemsetD8(pointer, 7, 4096))
        check(driver.cuMemcpyDtoH(data, pointer, 4096))
        assert data == bytes([7]) * 4096
        assert nothing_waits(link)


def release_under(link: SessionLink, sabotage: Sabotage, waiting: int) -> None:
    """Let the handler return once so many calls wait for their answers."""
    assert_eventually(lambda: len(link._session._pending) == waiting, f"{waiting} calls wait")
    sabotage.release()


def test_a_reply_that_comes_after_the_deadline_of_its_link_is_nobodys(
    server: ServerProcess, tmp_path: Path
) -> None:
    """C9: the call fails in time; a new link of the process finds it done, once."""
    hold = HoldBack(Kind.REPLIES)
    with BrokenLink(server.endpoint) as proxy:
        settings = {"relay": True, "reconnect_timeout": 1.0, **TIMES}
        try:
            with driving(proxy.endpoint, tmp_path, "late", **settings) as link:
                begin()
                counter = Counter()
                check(driver.cuCtxSynchronize())
                proxy.rule = hold
                counter.increment()
                started = time.monotonic()
                assert int(driver.cuCtxSynchronize()[0]) == ServerUnreachable.cu_result
                assert time.monotonic() - started < 15
                assert hold.held.is_set()
                assert nothing_waits(link)
                hold.released.set()
                assert int(driver.cuMemAlloc(4096)[0]) == ServerUnreachable.cu_result
                assert nothing_waits(link)
        finally:
            hold.released.set()
        with driving(proxy.endpoint, tmp_path, "late", **settings) as link:
            begin()
            assert counter.value() == 1
            assert nothing_waits(link)
            link.close(end=True)


def outcomes(*replies: tuple[int, int]) -> bytes:
    """Return a stream of outcomes: the call and the address it is given."""
    return b"".join(
        wire.pack_reply(Reply(ReplyKind.OUTCOME, seq, value=address), 4096)[0]
        for seq, address in replies
    )


def test_replies_to_calls_given_up_to_older_links_and_to_nothing_are_no_answers() -> None:
    """C9: each comes before the right answer, over the connection that the call waits on."""
    given_up, waits, unknown = 1, 2, 77

    def answer(message: Message) -> list[bytes] | None:
        now = message["generation"]
        if now == 1 or message["first_seq"] + message["count"] <= waits:
            return None
        server.say(wire.pack_replies(now - 1, waits, outcomes((waits, 0xBAD))))
        server.say(wire.pack_replies(now, 0, outcomes((given_up, 0x1000), (unknown, 0xBAD))))
        return [wire.pack_replies(now, waits, outcomes((waits, 0x2000)))]

    def asked() -> None:
        assert_eventually(lambda: server.seen[Kind.CALLS], "the call has come")

    session = ClientSession("mine", ids.new_incarnation(), ids.new_token())
    with ScriptedServer({Kind.CALLS: answer}) as server:
        link = SessionLink(session, LinkSettings(server.endpoint))
        link.open()
        try:
            with pytest.raises(GivenUp), given_up_after(asked):
                link.call(Op.MEM_ALLOC, 64)
            assert list(session._pending) == [given_up]
            assert link.call(Op.MEM_ALLOC, 64).value == 0x2000
            assert nothing_waits(link)
        finally:
            link.close()
