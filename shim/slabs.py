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
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from outlast import buffers
from outlast.session.schema import MAX_FRAME

#: Pieces in a slab.
PIECES = 32
#: How long a slab stays without having been used.
IDLE = 5.0  # seconds
#: A slab that was filled in less is followed by another: it is touched ahead of its use.
HASTE = 0.1  # seconds
#: Processors that this takes: on fewer, who touches takes time from who copies.
AHEAD_PROCESSORS = 4
#: Processor time of fresh memory from which on it is costly. Huge pages take 0.2 s with the copy
#: into them, small ones 0.5.
COSTLY = 1.0 / 1e9  # seconds a byte
#: Fresh bytes that say which it is.
ENOUGH = 64 << 20
#: What memory in huge pages is aligned to.
_HUGE = 2 << 20


class Slab:
    """Anonymous memory in pieces of equal size.

    Each view of a piece keeps one object alive, its holder. Nothing but the end of the holder
    makes a piece free: there are no counts that an interrupted thread could leave wrong.
    """

    def __init__(self, piece: int, pieces: int) -> None:
        self.used_at = 0.0
        self._piece = piece
        self._memory, self._start = _anonymous(piece * pieces)
        self._holder_type: Any = ctypes.c_char * piece
        self._holders: list[weakref.ref[Any] | None] = [None] * pieces
        #: Pieces that were free when last looked; to be looked at again before use.
        self._free = list(range(pieces))
        #: Dead references to holders that have gone since.
        self._gone: list[weakref.ref[Any]] = []
        self._touched = False

    def take(self, now: float) -> tuple[memoryview, bool] | None:
        """Return a free piece, to be written, and whether it is fresh; None if none is in sight."""
        if not self._free and self._gone:
            self.search()
        while self._free:
            index = self._free.pop()
            if self._is_free(index):
                self.used_at = now
                fresh = self._holders[index] is None and not self._touched
                return self._hold(index), fresh
        return None

    def search(self) -> None:
        """Look at every piece, also at those that an interrupted thread has lost sight of."""
        self._gone.clear()  # first: what ends from now on is noted
        self._free = [i for i in range(len(self._holders)) if self._is_free(i)]

    def touch(self) -> None:
        """Have the system give its memory now, without the GIL; nothing may be in it yet."""
        self._touched = True
        size = self._piece * len(self._holders)
        memory = (ctypes.c_char * size).from_buffer(self._memory, self._start)
        ctypes.memset(memory, 0, size)

    @property
    def unused(self) -> bool:
        """Whether all pieces are free."""
        return all(map(self._is_free, range(len(self._holders))))

    def _is_free(self, index: int) -> bool:
        holder = self._holders[index]
        return holder is None or holder() is None

    def _hold(self, index: int) -> memoryview:
        holder = self._holder_type.from_buffer(self._memory, self._start + index * self._piece)
        # Called in any thread, at any moment: so it takes no lock, and is no Python code, in
        # which Ctrl-C would be lost.
        self._holders[index] = weakref.ref(holder, self._gone.append)
        return memoryview(holder).cast("B")


class _Ahead:
    """A slab whose memory is touched in a thread while another one is filled."""

    def __init__(self, piece: int, pieces: int, note: Callable[[int, float], None]) -> None:
        self._size = piece, pieces
        self._note = note
        self._slab: Slab | None = None
        self._thread = threading.Thread(target=self._run, name="outlast-slab", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # no more memory: who needs it will see
            slab = Slab(*self._size)
            began = time.thread_time()
            slab.touch()
            self._note(self._size[0] * self._size[1], time.thread_time() - began)
            self._slab = slab

    def slab(self) -> Slab | None:
        """Return it when it is ready; None if there is no memory for it."""
        self._thread.join()
        return self._slab


class Slabs:
    """The slabs of a process; any thread may use them.

    Parameters
    ----------
    piece, pieces : int
        Bytes of a piece, and how many a slab has.
    ahead : bool, optional
        Touch the memory of the next slab while one is filled in haste; by default where there
        are processors for it.
    """

    def __init__(
        self, piece: int = MAX_FRAME, pieces: int = PIECES, ahead: bool | None = None
    ) -> None:
        self.piece = piece
        self._pieces = pieces
        self._slabs: list[Slab] = []
        #: The one that a piece came from last: there may be many.
        self._current: Slab | None = None
        self._lock = threading.Lock()
        self._ahead = _processors() >= AHEAD_PROCESSORS if ahead is None else ahead
        self._next: _Ahead | None = None
        self._made_at = float("-inf")
        #: Bytes that were touched for the first time, and the processor time that took.
        self._fresh = 0
        self._spent = 0.0

    @property
    def costly(self) -> bool:
        """Whether fresh memory has cost so much that there should be no more of it.

        A virtual machine may have to get it from its host first, at 2 s a GB: then memory that
        was used before is better, and so is the file of the log's overflow.
        """
        return self._fresh >= ENOUGH and self._spent > self._fresh * COSTLY

    def copy(self, data: memoryview) -> bytes | memoryview:
        """Return a copy of ``data``, in a piece if it fills one.

        Less than a piece would waste the rest, which the log's limit does not count.
        """
        if len(data) != self.piece:
            return bytes(data)
        try:
            piece, fresh = self._take()
        except OSError:
            return bytes(data)  # no more slabs; one piece may still be had
        began = time.thread_time() if fresh else 0.0
        buffers.copy(piece, data)
        if fresh:
            self._note(self.piece, time.thread_time() - began)
        return piece

    def trim(self, idle: float = IDLE) -> None:
        """Give back the slabs that nothing has used for ``idle`` seconds."""
        if not self._slabs and self._next is None:
            return
        with self._lock:
            since = time.monotonic() - idle
            if self._made_at <= since:
                self._drop_next()
            self._current = None
            # What still were a view of it would keep its memory; there is none.
            self._slabs = [s for s in self._slabs if s.used_at > since or not s.unused]

    def close(self) -> None:
        """Make no more slabs ahead; what is held stays."""
        with self._lock:
            self._ahead = False
            self._drop_next()

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        count = len(self._slabs) + (self._next is not None)
        return count * self._pieces * self.piece

    def _note(self, size: int, seconds: float) -> None:
        self._fresh += size
        self._spent += seconds

    def _take(self) -> tuple[memoryview, bool]:
        now = time.monotonic()
        with self._lock:
            piece = self._current.take(now) if self._current is not None else None
            if piece is not None:
                return piece
            # The oldest first, so that the newest ones fall idle.
            for slab in self._slabs:
                piece = slab.take(now)
                if piece is not None:
                    self._current = slab
                    return piece
            for slab in self._slabs:
                slab.search()
                piece = slab.take(now)
                if piece is not None:
                    self._current = slab
                    return piece
            slab = self._current = self._make(now)
            slab.used_at = now
            self._slabs.append(slab)
            piece = slab.take(now)
        assert piece is not None
        return piece

    def _make(self, now: float) -> Slab:
        """Return the slab that was touched ahead, or a fresh one; begin with another in haste."""
        made, self._next = self._next, None
        slab = made.slab() if made is not None else None
        slab = slab or Slab(self.piece, self._pieces)
        if self._ahead and now - self._made_at < HASTE:
            self._next = _Ahead(self.piece, self._pieces, self._note)
        self._made_at = now
        return slab

    def _drop_next(self) -> None:
        dropped, self._next = self._next, None
        if dropped is not None:
            dropped.slab()


def _anonymous(size: int) -> tuple[mmap.mmap, int]:
    """Return memory of this process alone, and where in it ``size`` bytes are to be used.

    In huge pages where the system has them: the first touch of fresh memory costs 0.12 s a GB
    then, instead of 0.45. What lies before the first whole one is never touched.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size), 0
    spare = _HUGE if size >= _HUGE else 0
    memory = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE if spare else 0
    return memory, start


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
