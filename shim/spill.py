"""The files that take the log's overflow."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from outlast.errors import LogFull
from outlast.session.calllog import Payload

#: Bytes after which another file is begun: what is not needed any more goes a file at a time.
PIECE = 64 << 20


class FileSpill:
    """Append-only temporary files, made when they are needed and gone with the process.

    What is written costs a copy into the page cache, some 0.25 ms a MiB, while a call waits;
    a log that spills all the time about halves the speed of copies to the device.
    """

    def __init__(self, folder: Path, piece: int = PIECE) -> None:
        self._folder = folder
        self._piece = piece
        #: Each file and the position at which it begins.
        self._files: deque[tuple[int, IO[bytes]]] = deque()
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._end - self._files[0][0] if self._files else 0

    def write(self, parts: Sequence[Payload]) -> int:
        """Append the parts and return where they begin.

        Raises
        ------
        LogFull
            The file cannot be written.
        """
        position = self._end
        try:
            if not self._files or position - self._files[-1][0] >= self._piece:
                new = tempfile.TemporaryFile(dir=self._folder, prefix="outlast-log-")  # noqa: SIM115
                self._files.append((position, new))
            begin, file = self._files[-1]
            file.seek(position - begin)
            for part in parts:
                file.write(part)
            file.flush()
        except OSError as error:
            raise LogFull(
                f"the call log cannot spill into {self._folder}: {error.strerror}; "
                "set LUPINE_SPILL_DIR to a folder with room"
            ) from error
        self._end += sum(map(len, parts))
        return position

    def read(self, position: int, sizes: list[int]) -> list[bytes]:
        """Return parts of the given sizes from ``position``."""
        begin, file = next(entry for entry in reversed(self._files) if entry[0] <= position)
        file.seek(position - begin)
        return [file.read(size) for size in sizes]

    def trim(self, position: int) -> None:
        """Forget what lies before ``position``."""
        while len(self._files) > 1 and self._files[1][0] <= position:
            self._files.popleft()[1].close()

    def reset(self) -> None:
        """Forget everything: no batch is spilled any more."""
        while self._files:
            self._files.popleft()[1].close()
