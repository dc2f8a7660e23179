"""Memory for the payloads of large copies, used again once nobody holds it.

A fresh mebibyte costs the kernel 256 page faults, several times what filling it costs. So the
pieces of large copies lie in slabs that stay: who takes a piece gets a view of it, and it is
free again when that view and all made from it are gone, wherever they were: in the log, in a
message that ZeroMQ has not sent yet, in the queue of a connection that is being closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
import weakref
from typing import Any

from outlast import buffers
from outlast.session.schema import MAX_FRAME

#: Pieces in a slab.
PIECES = 32
#: How long a slab stays without having been used.
IDLE = 5.0  # seconds


class Slab:
    """Anonymous memory in pieces of equal size.

    Each view of a piece keeps one object alive, its holder. Nothing but the end of the holder
    makes a piece free: there are no counts that an interrupted thread could leave wrong.
    """

    def __init__(self, piece: int, pieces: int) -> None:
        self.used_at = 0.0
        self._piece = piece
        self._memory = _anonymous(piece * pieces)
        self._holder_type: Any = ctypes.c_char * piece
        self._holders: list[weakref.ref[Any] | None] = [None] * pieces
        #: Pieces that were free when last looked; to be looked at again before use.
        self._free = list(range(pieces))
        #: Dead references to holders that have gone since.
        self._gone: list[weakref.ref[Any]] = []

    def take(self, now: float) -> memoryview | None:
        """Return a free piece, to be written; None if there is none in sight."""
        if not self._free and self._gone:
            self.search()
        while self._free:
            index = self._free.pop()
            if self._is_free(index):
                self.used_at = now
                return self._hold(index)
        return None

    def search(self) -> None:
        """Look at every piece, also at those that an interrupted thread has lost sight of."""
        self._gone.clear()  # first: what ends from now on is noted
        self._free = [i for i in range(len(self._holders)) if self._is_free(i)]

    @property
    def unused(self) -> bool:
        """Whether all pieces are free."""
        return all(map(self._is_free, range(len(self._holders))))

    def _is_free(self, index: int) -> bool:
        holder = self._holders[index]
        return holder is None or holder() is None

    def _hold(self, index: int) -> memoryview:
        holder = self._holder_type.from_buffer(self._memory, index * self._piece)
        # Called in any thread, at any moment: so it takes no lock, and is no Python code, in
        # which Ctrl-C would be lost.
        self._holders[index] = weakref.ref(holder, self._gone.append)
        return memoryview(holder).cast("B")


class Slabs:
    """The slabs of a process; any thread may use them."""

    def __init__(self, piece: int = MAX_FRAME, pieces: int = PIECES) -> None:
        self.piece = piece
        self._pieces = pieces
        self._slabs: list[Slab] = []
        self._lock = threading.Lock()

    def copy(self, data: memoryview) -> bytes | memoryview:
        """Return a copy of ``data``, in a piece if it fills one.

        Less than a piece would waste the rest, which the log's limit does not count.
        """
        if len(data) != self.piece:
            return bytes(data)
        try:
            piece = self._take()
        except OSError:
            return bytes(data)  # no more slabs; one piece may still be had
        buffers.copy(piece, data)
        return piece

    def trim(self, idle: float = IDLE) -> None:
        """Give back the slabs that nothing has used for ``idle`` seconds."""
        if not self._slabs:
            return
        with self._lock:
            since = time.monotonic() - idle
            # What still were a view of it would keep its memory; there is none.
            self._slabs = [s for s in self._slabs if s.used_at > since or not s.unused]

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        return len(self._slabs) * self._pieces * self.piece

    def _take(self) -> memoryview:
        now = time.monotonic()
        with self._lock:
            # The oldest first, so that the newest ones fall idle.
            for slab in self._slabs:
                piece = slab.take(now)
                if piece is not None:
                    return piece
            for slab in self._slabs:
                slab.search()
                piece = slab.take(now)
                if piece is not None:
                    return piece
            slab = Slab(self.piece, self._pieces)
            self._slabs.append(slab)
            piece = slab.take(now)
        assert piece is not None
        return piece


def _anonymous(size: int) -> mmap.mmap:
    """Return memory of this process alone, in huge pages where the system has them."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
