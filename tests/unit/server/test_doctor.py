"""The doctor: every line true, and what is wrong named with what to do."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlast import cli
from outlast.config import ServeConfig
from outlast.server.doctor import devices, places
from outlast.server.doctor.finding import Grade, size_text
from outlast.server.doctor.report import findings
from outlast.server.locks import LifetimeLock
from outlast.session.store import Store

Configure = Callable[..., ServeConfig]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def make(**flags: str) -> ServeConfig:
        state = str(tmp_path / "state")
        free = "tcp://127.0.0.1:0"
        return ServeConfig.resolve(
            {"device": "emulated", "state_dir": state, "bind": free, **flags}, {}
        )

    return make


def test_a_good_host_is_all_ok_and_left_as_it_was(configure: Configure, tmp_path: Path) -> None:
    found = list(findings(configure(grace="1000000")))
    assert {finding.grade for finding in found} == {Grade.OK}
    assert [finding.what for finding in found] == [
        *("outlast", "device", "device 0", "device 0", "device 0"),
        *("state", "port", "journal", "room", "speed"),
    ]
    assert not list((tmp_path / "state").rglob("*doctor*"))


def test_every_emulated_device_is_listed(configure: Configure) -> None:
    config = configure(emulated_devices="3")
    found, memory = devices.look(config.device, config.emulated_devices)
    texts = [f.text for f in found if f.what.startswith("device ") and "emulated" in f.text]
    assert len(texts) == 3
    assert len({text.split()[-1] for text in texts}) == 3  # each has a UUID of its own
    bases = [f.text for f in found if "addresses from" in f.text]
    assert len(set(bases)) == 3
    assert memory == 3 * devices.look(config.device)[1]


def test_the_command_prints_each_finding_and_fails_if_no_server_can_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["doctor", "--device", "emulated", "--bind", "tcp://127.0.0.1:0"]
    assert cli.main([*good, "--state", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok ", "warning ")) for line in lines)
    assert cli.main([*good, "--state", "/dev/null/state"]) == 1
    assert "failure  state        /dev/null/state: Not a directory" in capsys.readouterr().out


def test_a_taken_port_is_a_failure_unless_the_server_here_has_it(configure: Configure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = configure(bind=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        assert places.port(config, running=False).grade is Grade.FAILURE
        assert "--bind" in places.port(config, running=False).text
        assert places.port(config, running=True).grade is Grade.OK


def test_an_open_address_is_warned_of(configure: Configure) -> None:
    config = configure(bind="tcp://0.0.0.0:0", insecure="yes")
    assert places.port(config, running=False).grade is Grade.WARNING


def test_a_running_server_is_named(configure: Configure, tmp_path: Path) -> None:
    config = configure()
    held = LifetimeLock(tmp_path / "state" / "server.lock")
    assert held.try_acquire()
    finding, running = places.state(config)
    held.release()
    assert running
    assert "process" in finding.text
    assert places.state(config)[1] is False


def test_the_journal_is_named_by_its_revision_and_not_changed(configure: Configure) -> None:
    config = configure()
    config.state_dir.mkdir()
    assert "empty" in places.database(config).text
    assert "empty" in places.database(config).text  # still
    unusable = configure(database="sqlite:////dev/null/journal.db")
    assert places.database(unusable).grade is Grade.FAILURE
    store = Store.open(config.database)
    store.close()


def test_want_of_room_and_of_time_is_told_before_the_shutdown(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9 << 30))
    monkeypatch.setattr(places, "_write_rate", lambda _: float(1 << 30))
    room, speed = places.checkpoints(configure(grace="30"), memory=16 << 30)
    assert (room.grade, speed.grade) == (Grade.WARNING, Grade.WARNING)
    assert "more than 3.0 GiB together will not be saved" in room.text
    assert "takes about 32 s" in speed.text
    assert "enough for 15.0 GiB" in speed.text
    room, speed = places.checkpoints(configure(grace="40"), memory=3 << 30)
    assert (room.grade, speed.grade) == (Grade.OK, Grade.OK)


def test_a_store_that_cannot_be_written_is_a_failure(configure: Configure) -> None:
    (finding,) = places.checkpoints(configure(provider="directory:/dev/null/x"), memory=1)
    assert finding.grade is Grade.FAILURE


def test_a_store_that_ends_with_the_server_is_warned_of(configure: Configure) -> None:
    (finding,) = places.checkpoints(configure(provider="memory"), memory=1)
    assert finding.grade is Grade.WARNING


def test_devices_that_cannot_be_looked_at_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.sys, "executable", "/bin/false")
    (finding,), memory = devices.look("emulated")
    assert (finding.grade, memory) == (Grade.FAILURE, 0)
    assert "exit code 1" in finding.text


def test_a_device_that_lacks_something_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"ordinal": 0, "name": "GPU", "uuid": "u", "total": 64 << 30, "free": 1, "base": 16}
    found = {"version": 13010, "devices": [{**gpu, "shared": "no descriptors"}]}
    monkeypatch.setattr(devices.registry, "require", lambda _: "cuda")
    monkeypatch.setattr(devices, "examined", lambda _: found)
    monkeypatch.setattr(devices.resource, "getrlimit", lambda _: (1024, 1024))
    report, memory = devices.look("auto")
    assert memory == 64 << 30
    assert [f.grade for f in report] == [
        *(Grade.OK, Grade.OK, Grade.OK, Grade.WARNING, Grade.WARNING),
    ]
    assert report[0].text == "CUDA 13.1 driver"
    assert "no descriptors" in report[3].text
    assert "2248 are needed" in report[4].text


@pytest.mark.parametrize(
    ("size", "text"),
    [(5, "5 bytes"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (1 << 42, "4.0 TiB")],
)
def test_sizes_are_told_in_the_unit_that_suits(size: int, text: str) -> None:
    assert size_text(size) == text
