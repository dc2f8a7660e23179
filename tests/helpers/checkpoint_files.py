"""The files of a server's checkpoints: found, counted, damaged."""

from __future__ import annotations

from pathlib import Path

from outlast.session.rows import EpochRow

DATA, MANIFEST = "data.bin", "manifest.json"


def folder_of(state: Path, epoch: EpochRow) -> Path:
    """Return the folder of a committed epoch."""
    return state / "checkpoints" / epoch.location


def published(state: Path) -> list[Path]:
    """Return the folders of complete epochs."""
    return [folder for folder in _folders(state) if not folder.name.startswith(".")]


def unfinished(state: Path) -> list[Path]:
    """Return the folders of epochs that are being written or removed."""
    return [folder for folder in _folders(state) if folder.name.startswith(".")]


def flip_byte(path: Path, position: int | None = None) -> None:
    """Change one byte of a file, by default the middle one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 0x40
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut a file's second half off."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folders(state: Path) -> list[Path]:
    return [path for path in (state / "checkpoints").glob("*/*/*") if path.is_dir()]
