"""The start of a server: who it is."""

from __future__ import annotations

from pathlib import Path

from outlast.server.app import _server_id


def test_a_server_is_the_same_after_a_restart(tmp_path: Path) -> None:
    first = _server_id(tmp_path)

    assert _server_id(tmp_path) == first
    assert {path.name for path in tmp_path.iterdir()} == {"server_id"}


def test_an_id_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "server_id").write_text("")

    assert _server_id(tmp_path).startswith("server-")
