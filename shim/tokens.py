"""Resume tokens of named sessions: one file each, readable by the user alone."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outlast.errors import ConfigError
from outlast.values import is_loopback


class TokenStore:
    """The folder where the tokens of this user's sessions are kept.

    Every method raises `ConfigError` if the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, server: str, session: str, token: str) -> str:
        """Keep a token unless there is one; return the one that is kept now.

        Of processes that begin a session at the same time, all get the same token: whichever
        of them creates the session, it can be resumed.
        """
        path = self._path(server, session)
        with self._usable():
            if kept := _read(path):
                return kept
            with self._written(token) as new:
                # A link that exists already stays as it is, a file would be replaced.
                with contextlib.suppress(OSError):
                    os.link(new, path)
                if not (kept := _read(path)):
                    new.replace(path)  # there are file systems without links
                    kept = token
        return kept

    def replace(self, server: str, session: str, token: str) -> None:
        """Keep a token instead of the one that is kept."""
        with self._usable(), self._written(token) as new:
            new.replace(self._path(server, session))

    def _path(self, server: str, session: str) -> Path:
        name = hashlib.sha256(f"{_plain(server)}\0{session}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.token"

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise ConfigError(
                f"the folder of resume tokens {self._folder} cannot be used: {error.strerror}; "
                "name another one with LUPINE_STATE_DIR"
            ) from error

    @contextlib.contextmanager
    def _written(self, token: str) -> Iterator[Path]:
        """Write a token to a file of its own, which others must not read half-written."""
        with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
            file.write(token)
        new = Path(file.name)
        try:
            yield new
        finally:
            new.unlink(missing_ok=True)


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""


def _plain(server: str) -> str:
    """Return one spelling for all that certainly name the same server."""
    host, _, port = server.removeprefix("tcp://").rpartition(":")
    return f"tcp://{'127.0.0.1' if is_loopback(server) else host.lower()}:{port}"
