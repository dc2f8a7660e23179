"""Which server may follow which, and what a running one says of itself."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

from outlast.config import ServeConfig
from outlast.errors import TakeOverFailed
from outlast.server import notice, takeover
from outlast.server.doctor import devices
from outlast.server.locks import LifetimeLock
from outlast.server.notice import Notice
from outlast.server.takeover import TakeOver

ENDPOINT = "tcp://127.0.0.1:40000"


def config(tmp_path: Path, **flags: str) -> ServeConfig:
    settings = {"state_dir": str(tmp_path), "device": "emulated", "bind": ENDPOINT, **flags}
    return ServeConfig.resolve({"take_over": "yes", **settings}, {})


@pytest.fixture
def running(tmp_path: Path) -> Notice:
    return notice.of(config(tmp_path), ENDPOINT)


def test_a_server_is_known_by_what_it_posted_until_it_takes_that_back(tmp_path: Path) -> None:
    settings = config(tmp_path, database="postgresql://me:hunter22@host/name")
    notice.post(settings, ENDPOINT)
    known = notice.read(tmp_path)
    assert known is not None
    assert (known.pid, known.endpoint) == (os.getpid(), ENDPOINT)
    assert "hunter22" not in (tmp_path / notice.NAME).read_text()
    assert (tmp_path / notice.NAME).stat().st_mode & 0o077 == 0
    notice.remove(tmp_path)
    notice.remove(tmp_path)
    assert notice.read(tmp_path) is None


@pytest.mark.parametrize("change", [{"pid": "5"}, {"grace": None}, {"bind": 7}, {"device": []}])
def test_a_notice_that_makes_no_sense_is_none(
    tmp_path: Path, running: Notice, change: dict[str, object]
) -> None:
    path = tmp_path / notice.NAME
    path.write_text(json.dumps({**dataclasses.asdict(running), "from a later version": 1}))
    assert notice.read(tmp_path) == running
    path.write_text(json.dumps({**dataclasses.asdict(running), **change}))
    assert notice.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "null"])
def test_a_damaged_notice_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / notice.NAME).write_text(text)
    assert notice.read(tmp_path) is None


@pytest.mark.parametrize(
    ("bind", "given", "expected"),
    [
        (ENDPOINT, ENDPOINT, ENDPOINT),
        ("tcp://127.0.0.1:0", ENDPOINT, ENDPOINT),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", ENDPOINT),
        ("tcp://localhost:0", "tcp://localhost:0", ENDPOINT),
        ("tcp://localhost:40000", "tcp://localhost:40000", "tcp://localhost:40000"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.2:0", ""),
        (ENDPOINT, "tcp://127.0.0.1:40001", ""),
    ],
)
def test_clients_are_to_find_it_where_the_server_before_was(
    tmp_path: Path, running: Notice, bind: str, given: str, expected: str
) -> None:
    running = dataclasses.replace(running, bind=bind)
    assert takeover.address_of(config(tmp_path, bind=given), running) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"grace": 5.0, "pid": 1}, None),
        ({"version": "0.0.1"}, None),
        ({"device": "cuda"}, "its device is cuda, not emulated"),
        ({"provider": "memory"}, "its provider is memory, not directory"),
        ({"database": "sqlite:////x"}, "its database is sqlite:////x, not "),
        ({"bind": "tcp://[::1]:0", "endpoint": "tcp://[::1]:7"}, "come to tcp://[::1]:7, not to"),
    ],
)
def test_what_keeps_a_server_from_following_another_is_named(
    tmp_path: Path, running: Notice, change: dict[str, object], said: str | None
) -> None:
    found = takeover.obstacles(config(tmp_path), dataclasses.replace(running, **change))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_workers_of_another_version_cannot_stay(tmp_path: Path, running: Notice) -> None:
    settings = config(tmp_path, take_over="gateway")
    assert not takeover.obstacles(settings, running)
    (said,) = takeover.obstacles(settings, dataclasses.replace(running, version="0.0.1"))
    assert "version 0.0.1" in said


class Stubborn:
    """A running server that does not end."""

    pid = 4711

    def __init__(self) -> None:
        self.told: list[int] = []

    def tell(self, number: signal.Signals) -> None:
        self.told.append(number)

    def wait(self, timeout: float) -> bool:
        return False


@pytest.mark.parametrize(("how", "number"), [("yes", signal.SIGUSR2), ("gateway", signal.SIGUSR1)])
def test_a_server_that_does_not_end_keeps_its_place(
    tmp_path: Path, how: str, number: signal.Signals
) -> None:
    lock = LifetimeLock(tmp_path / "server.lock")
    try:
        follower = TakeOver(config(tmp_path, take_over=how), lock)
        running = follower._incumbent = Stubborn()  # type: ignore[assignment]
        with pytest.raises(TakeOverFailed, match=r"process 4711 .* not ended .* once it has"):
            follower.take()
        assert running.told == [number]
        # Nobody else may try meanwhile.
        with pytest.raises(TakeOverFailed, match=f"process {os.getpid()} is about to"):
            TakeOver(config(tmp_path), lock)
    finally:
        lock.release()
        follower._turn.release()


@pytest.mark.parametrize(
    "found",
    [
        {"error": "no libcuda"},
        {"devices": [{"shared": ""}, {"error": "no libcuda", "shared": ""}]},
        {"devices": [{"shared": ""}, {"shared": "no libcuda"}]},
    ],
)
def test_a_device_that_cannot_share_its_memory_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, object]
) -> None:
    class Parts:
        """Whatever else is made ready."""

        kept = property(lambda self: self)
        prepare = start = await_warm = lambda *_: None

    monkeypatch.setattr(devices, "examined", lambda device: found)
    lock = LifetimeLock(tmp_path / "server.lock")
    follower = TakeOver(config(tmp_path), lock)
    running = follower._incumbent = Stubborn()  # type: ignore[assignment]
    try:
        with pytest.raises(TakeOverFailed, match=r"handed over: no libcuda; .* with SIGTERM"):
            follower.prepare(Parts(), Parts())  # type: ignore[arg-type]
        assert not running.told
    finally:
        lock.release()
        follower._turn.release()
