"""The file that takes the log's overflow."""

from __future__ import annotations

import tempfile
from pathlib import Path

from outlast.errors import LogFull


class FileSpill:
    """Append-only temporary file, made on first use and gone with the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: tempfile._TemporaryFileWrapper[bytes] | None = None

    def write(self, parts: list[bytes]) -> int:
        """Append the parts and return where they begin.

        Raises
        ------
        LogFull
            The file cannot be written.
        """
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, prefix="outlast-log-")  # type: ignore[assignment]  # noqa: SIM115
            assert self._file is not None
            position = self._file.seek(0, 2)
            for part in parts:
                self._file.write(part)
            self._file.flush()
        except OSError as error:
            raise LogFull(
                f"the call log cannot spill into {self._folder}: {error.strerror}; "
                "set LUPINE_SPILL_DIR to a folder with room"
            ) from error
        return position

    def read(self, position: int, sizes: list[int]) -> list[bytes]:
        """Return parts of the given sizes from ``position``."""
        assert self._file is not None
        self._file.seek(position)
        return [self._file.read(size) for size in sizes]

    def reset(self) -> None:
        """Forget everything: no batch is spilled any more."""
        if self._file is not None:
            self._file.truncate(0)
