"""Resume tokens: kept once for a session, for its user alone, whatever its server is called."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from outlast.config import ClientConfig
from outlast.errors import ConfigError
from outlast.shim.connection import connect
from outlast.shim.tokens import TokenStore

SERVER = "tcp://127.0.0.1:14833"


def test_the_first_token_of_a_session_stays(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path / "client")

    assert tokens.keep(SERVER, "mine", "first") == "first"
    assert tokens.keep(SERVER, "mine", "second") == "first"
    assert tokens.keep(SERVER, "other", "second") == "second"


def test_a_token_that_the_user_names_takes_the_place_of_the_kept_one(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    tokens.keep(SERVER, "mine", "first")

    tokens.replace(SERVER, "mine", "named")

    assert tokens.keep(SERVER, "mine", "second") == "named"


def test_programs_that_begin_a_session_together_get_one_token(tmp_path: Path) -> None:
    begin = threading.Barrier(8)
    kept: list[str] = []

    def start(number: int) -> None:
        begin.wait(10)
        kept.append(TokenStore(tmp_path).keep(SERVER, "mine", f"token {number}"))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert kept == [TokenStore(tmp_path).keep(SERVER, "mine", "late")] * 8
    assert len(list(tmp_path.iterdir())) == 1


def test_nobody_else_can_read_a_token(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "client"
    TokenStore(folder).keep(SERVER, "mine", "first")
    TokenStore(folder).replace(SERVER, "other", "second")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_token_that_was_never_written_is_no_token(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    tokens.keep(SERVER, "mine", "first")
    (file,) = tmp_path.iterdir()
    file.write_text("")

    assert tokens.keep(SERVER, "mine", "second") == "second"
    assert tokens.keep(SERVER, "mine", "third") == "second"


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("tcp://localhost:14833", True),
        ("tcp://LocalHost:14833", True),
        ("tcp://[::1]:14833", True),
        ("tcp://127.0.0.1:14834", False),
        ("tcp://example.org:14833", False),
    ],
)
def test_a_token_is_found_under_every_name_of_the_own_machine(
    tmp_path: Path, written: str, same: bool
) -> None:
    tokens = TokenStore(tmp_path)
    tokens.keep(SERVER, "mine", "first")

    assert (tokens.keep(written, "mine", "second") == "first") is same


def test_a_name_in_capitals_is_the_same_server(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    tokens.keep("tcp://gpu.example.org:14833", "mine", "first")

    assert tokens.keep("tcp://GPU.example.org:14833", "mine", "second") == "first"


def test_a_folder_that_cannot_be_used_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    config = ClientConfig(server="tcp://127.0.0.1:1", session="mine", state_dir=file / "client")

    with pytest.raises(ConfigError, match="LUPINE_STATE_DIR"):
        connect(config)
