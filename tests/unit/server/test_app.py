"""The start of a server: who it is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.config import ServeConfig
from outlast.errors import ConfigError, OutlastError, TakeOverFailed
from outlast.server import app, gateway
from outlast.server.app import _check_provider, _server_id, _state_lock


def test_a_server_is_the_same_after_a_restart(tmp_path: Path) -> None:
    first = _server_id(tmp_path)

    assert _server_id(tmp_path) == first
    assert {path.name for path in tmp_path.iterdir()} == {"server_id"}


def test_an_id_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "server_id").write_text("")

    assert _server_id(tmp_path).startswith("server-")


def test_a_provider_that_no_worker_could_use_is_refused_before_a_client_comes() -> None:
    with pytest.raises(ConfigError, match="known: directory, memory"):
        _check_provider(ServeConfig.resolve({"provider": "carrier-pigeon"}))


def test_a_state_folder_that_cannot_be_made_is_named_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="/dev/null/state cannot be used: Not a directory"):
        _state_lock(Path("/dev/null/state"))


class Failing:
    """A gateway that cannot listen."""

    serving = False

    def __init__(self, *_: object) -> None:
        pass

    def run(self, signal_fd: int) -> int:
        raise ConfigError("cannot listen at tcp://127.0.0.1:1")


class Done:
    """A take-over that has succeeded so far."""

    def prepare(self, *_: object) -> None:
        pass

    take = prepare


@pytest.fixture
def thawed() -> Iterator[None]:
    """Let this process collect its garbage as before: a server never has to again."""
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize(
    ("take_over", "error", "said"),
    [
        (None, ConfigError, "^cannot listen at tcp://127.0.0.1:1$"),
        (Done(), TakeOverFailed, "1; the server before has made way.*without --take-over$"),
    ],
)
def test_a_server_that_fails_after_another_made_way_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    take_over: object,
    error: type[OutlastError],
    said: str,
) -> None:
    monkeypatch.setattr(gateway, "Gateway", Failing)
    monkeypatch.setattr(app, "_signal_descriptor", lambda: -1)
    config = ServeConfig.resolve({"state_dir": str(tmp_path), "device": "emulated"}, {})

    with pytest.raises(error, match=said):
        app._serve(config, None, take_over)  # type: ignore[arg-type]
