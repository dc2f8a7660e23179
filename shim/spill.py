"""The files that take the log's overflow."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast.errors import LogFull, SessionLost
from outlast.session.calllog import Payload

log = logging.getLogger("outlast.link")

#: Bytes after which another file is begun: what is not needed any more goes a file at a time.
PIECE = 64 << 20


class FileSpill:
    """Append-only temporary files, made when they are needed and gone with the process.

    They are written by a thread of their own, which lives as long as there is something to
    write: calls go on meanwhile. Whoever needs the room that this makes has to wait for it.
    """

    def __init__(self, folder: Path, piece: int = PIECE) -> None:
        self._folder = folder
        self._piece = piece
        self._files: deque[_File] = deque()
        self._end = 0
        self._queue: deque[_Writing] = deque()
        self._writing = False
        #: Guards everything above; told when something is written.
        self._changed = threading.Condition()
        self._warned = False

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._end - self._files[0].begin if self._files else 0

    def write(self, parts: Sequence[Payload]) -> _Writing:
        """Begin to append the parts; a failure is a `LogFull` that names the folder."""
        if not self._warned:
            self._warned = True
            log.warning(
                "the call log goes to a file in %s from now on: checkpoints are slower than the "
                "program, or LUPINE_REPLAY_LIMIT is too low for it",
                self._folder,
                extra={"action": "log_spills"},
            )
        writing = _Writing(parts)
        with self._changed:
            self._queue.append(writing)
            if not self._writing:
                threading.Thread(target=self._run, name="outlast-spill", daemon=True).start()
        return writing

    def wait(self, timeout: float) -> None:
        """Wait until something that was begun is done, if there is anything."""
        with self._changed:
            if self._queue:
                self._changed.wait(timeout)

    def read(self, position: int, sizes: list[int]) -> list[bytes]:
        """Return parts of the given sizes from ``position``.

        Raises
        ------
        SessionLost
            They cannot be had any more; names the file and why.
        """
        with self._changed:
            file = next(file for file in reversed(self._files) if file.begin <= position)
        parts = []
        for size in sizes:
            parts.append(file.read(position, size))
            position += size
        return parts

    def trim(self, position: int) -> None:
        """Forget what lies before ``position``."""
        with self._changed:
            while len(self._files) > 1 and self._files[1].begin <= position:
                self._files.popleft().close()

    def reset(self) -> None:
        """Forget everything, also what is not written yet."""
        with self._changed:
            self._queue.clear()
            while self._files:
                self._files.popleft().close()

    # -- the thread that writes ----------------------------------------------------------------

    def _run(self) -> None:
        with self._changed:
            if self._writing:
                return  # Ctrl-C made two of us
            self._writing = True
            try:
                while self._queue:
                    self._write_next(self._queue[0])
            finally:
                self._writing = False

    def _write_next(self, writing: _Writing) -> None:
        """Write what is first in the queue; the lock is free while the system writes."""
        try:
            if not self._files or self._end - self._files[-1].begin >= self._piece:
                self._files.append(_File(self._folder, self._end, self._piece))
            file, position = self._files[-1], self._end
            file.busy = True
            self._changed.release()
            try:
                file.write(position, writing.parts)
            finally:
                self._changed.acquire()
                file.release()
        except OSError as error:
            self._fail(error)
        else:
            if self._queue and self._queue[0] is writing:  # else it is not wanted any more
                self._queue.popleft()
                self._end = position + sum(map(len, writing.parts))
                writing.finish(position)
        self._changed.notify_all()

    def _fail(self, error: OSError) -> None:
        """Fail everything that waits, so that what is in the files has no gaps."""
        full = LogFull(
            f"the call log cannot spill into {self._folder}: {error.strerror or error}; "
            "set LUPINE_SPILL_DIR to a folder with room"
        )
        full.__cause__ = error
        while self._queue:
            self._queue.popleft().finish(0, full)


class _Writing:
    """Parts on their way into a file."""

    def __init__(self, parts: Sequence[Payload]) -> None:
        self.parts = parts
        self.position = 0
        self.error: LogFull | None = None
        self.done = False

    def finish(self, position: int, error: LogFull | None = None) -> None:
        """Note the end."""
        self.position, self.error = position, error
        self.parts = ()
        self.done = True


class _File:
    """One temporary file, which has no name, for about ``room`` bytes."""

    def __init__(self, folder: Path, begin: int, room: int) -> None:
        #: Position of its first byte.
        self.begin = begin
        #: It is being written; closing it waits for the end of that.
        self.busy = False
        self._folder = folder
        self._closed = False
        #: A file has one place at which it is read and written.
        self._place = threading.Lock()
        self._file: Any = tempfile.TemporaryFile(  # noqa: SIM115
            dir=folder, prefix="outlast-log-", buffering=0
        )
        # A file that has its blocks already takes writes half as fast again. Without it, or
        # where there is not so much room, it grows as it is written.
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fallocate(self._file.fileno(), 0, room)

    def write(self, position: int, parts: Sequence[Payload]) -> None:
        """Write parts, one behind the other. May raise ``OSError``."""
        for part in parts:
            left = memoryview(part)
            with self._place:
                self._file.seek(position - self.begin)
                while len(left):
                    left = left[self._file.write(left) :]
            position += len(part)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes that were written."""
        offset = position - self.begin
        found = b""
        reason = "the file is too short"
        try:
            with self._place:
                self._file.seek(offset)
                while len(found) < size and (piece := self._file.read(size - len(found))):
                    found = found + piece if found else piece
        except OSError as error:
            reason = error.strerror or str(error)
        if len(found) < size:
            raise SessionLost(
                f"a part of the call log cannot be read back from its file in {self._folder} "
                f"(bytes {offset} to {offset + size}): {reason}; "
                "without it the session cannot be continued",
                path=str(self._folder),
            )
        return found

    def release(self) -> None:
        """Note that nobody writes any more."""
        self.busy = False
        if self._closed:
            self._file.close()

    def close(self) -> None:
        """Give it back, at the latest when nobody writes any more."""
        self._closed = True
        if not self.busy:
            self._file.close()
