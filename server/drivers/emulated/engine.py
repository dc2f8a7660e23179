"""The producer's side of the command engine: write commands, wait for tickets.

A ticket is a command's number. Commands run strictly in issue order, which is one legal order
for all streams and makes every run the same bit for bit.
"""

from __future__ import annotations

import ctypes
import heapq
import mmap
import os
import struct
import threading
import time
from collections import deque

import numpy as np

from outlast.errors import ConfigError, LinkClosed
from outlast.server.drivers.emulated.engine_ir import engine_ir
from outlast.server.drivers.emulated.engine_layout import (
    CONTROL,
    COPY,
    COPY_FORMAT,
    FILL,
    FILL_FORMAT,
    LAUNCH,
    LAUNCH_FORMAT,
    MAP,
    MAP_FORMAT,
    NOBODY,
    PAD,
    PARAMETERS_OFFSET,
    STAMP,
    STAMP_FORMAT,
    UNMAP,
    UNMAP_FORMAT,
    WRITE,
    WRITE_FORMAT,
    WRITE_OFFSET,
)
from outlast.server.drivers.emulated.jit import Jit

RING_SIZE = 4 << 20  # bytes; a power of two
#: Up to this many bytes are copied into the ring, so that nothing need be kept alive.
INLINE_WRITE = 4096
_LONGEST_WAIT = 1 << 62  # nanoseconds
#: A wait without end looks this often whether a signal came or the device was closed.
_WAIT_SLICE = 0.2  # seconds

# What ends a kernel from outside.
DEINITIALIZED, LAUNCH_TIMEOUT = 4, 702

_HEAD, _TAIL, _COMPLETED = (CONTROL[name] for name in ("head", "tail", "completed"))
_FAULT = CONTROL["fault"]

_PAD = struct.Struct("=IIQ")
_LAUNCH = struct.Struct(LAUNCH_FORMAT)
_COPY = struct.Struct(COPY_FORMAT)
_WRITE = struct.Struct(WRITE_FORMAT)
_FILL = struct.Struct(FILL_FORMAT)
_STAMP = struct.Struct(STAMP_FORMAT)
_MAP = struct.Struct(MAP_FORMAT)
_UNMAP = struct.Struct(UNMAP_FORMAT)


def _record_size(size: int) -> int:
    return (size + 15) & ~15


_COPY_SIZE, _FILL_SIZE, _STAMP_SIZE, _MAP_SIZE, _UNMAP_SIZE = (
    _record_size(command.size) for command in (_COPY, _FILL, _STAMP, _MAP, _UNMAP)
)


class Engine:
    """One device thread and the ring that feeds it.

    Parameters
    ----------
    watchdog_s
        Seconds after which a running kernel is ended with 702; None lets it run.
    """

    def __init__(self, jit: Jit, *, watchdog_s: float | None = None) -> None:
        if watchdog_s is not None and watchdog_s <= 0:
            raise ConfigError(f"watchdog_s must be positive, not {watchdog_s}")
        self._code = jit.build(engine_ir())
        self._storage = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
        self.words = memoryview(self._storage).cast("Q")
        self._control = _address(self._storage)
        self._ring = mmap.mmap(-1, RING_SIZE, flags=mmap.MAP_PRIVATE)
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for name, value in (
            ("wake_at", NOBODY),
            ("watch_at", NOBODY),
            ("descriptor", self._descriptor),
            ("ring", _address(self._ring)),
            ("ring_mask", RING_SIZE - 1),
            ("watchdog", int(watchdog_s is not None)),
        ):
            self.words[CONTROL[name]] = value
        # Calls that return at once keep the GIL: taking it back costs more than they do.
        pointer, number, code = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
        self._publish = ctypes.PYFUNCTYPE(None, pointer, number)(self._code.address("publish"))
        self._watch = ctypes.PYFUNCTYPE(None, pointer, number)(self._code.address("watch"))
        self._fail = ctypes.PYFUNCTYPE(code, pointer, number)(self._code.address("fail"))
        self._stop = ctypes.PYFUNCTYPE(None, pointer)(self._code.address("stop"))
        self._wait_for = ctypes.CFUNCTYPE(code, pointer, number, ctypes.c_int64)(
            self._code.address("wait_for")
        )
        self._run = ctypes.CFUNCTYPE(None, pointer)(self._code.address("engine"))
        #: Held while a command is written; objects that a command changes are changed under it.
        self.lock = threading.RLock()
        self._head = 0
        #: How far ``_head`` may go; the engine's position is read only when it is reached.
        self._limit = RING_SIZE
        #: Ticket of the newest command.
        self.issued = 0
        self._kept: deque[tuple[int, object]] = deque()
        self._watched: list[int] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="emulated-device", daemon=True)
        self._thread.start()
        self._watchdog_s = watchdog_s
        self._watchdog_stop = threading.Event()
        self._watchdog: threading.Thread | None = None
        if watchdog_s is not None:
            self._watchdog = threading.Thread(
                target=self._watch_launches, name="emulated-watchdog", daemon=True
            )
            self._watchdog.start()

    def _work(self) -> None:
        self._run(self._control)

    @property
    def error_address(self) -> int:
        """Where kernels report an error."""
        return self._control + 8 * CONTROL["error"]

    # -- commands ------------------------------------------------------------
    # Each returns its ticket. The caller holds `lock` if it must record the ticket.

    def launch(
        self,
        tag: int,
        function: int,
        worker: int,
        kernel: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        dynamic: int,
        parameters: bytes | bytearray | memoryview,
    ) -> int:
        """Run a kernel; its parameters are copied into the command."""
        length = len(parameters)
        size = (PARAMETERS_OFFSET + length + 15) & ~15
        offset = self._reserve(size)
        _LAUNCH.pack_into(
            self._ring, offset, LAUNCH, size, tag, function, worker, kernel,
            grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, dynamic, length, 0,
        )  # fmt: skip
        if length:
            start = offset + PARAMETERS_OFFSET
            self._ring[start : start + length] = parameters
        self.issued = ticket = self.issued + 1
        self._publish(self._control, self._head)
        return ticket

    def copy(self, tag: int, target: int, source: int, size: int, keep: object = None) -> int:
        """Copy bytes between any two addresses; ``keep`` lives until that is done."""
        offset = self._reserve(_COPY_SIZE)
        _COPY.pack_into(self._ring, offset, COPY, _COPY_SIZE, tag, target, source, size)
        ticket = self._issue()
        if keep is not None:
            self._keep(ticket, keep)
        return ticket

    def write(self, tag: int, target: int, data: bytes | bytearray | memoryview) -> int:
        """Copy host bytes to the device; ``data`` may change only when that is done."""
        size = len(data)
        if size > INLINE_WRITE or self._is_half_full():
            array = np.frombuffer(data, np.uint8)
            return self.copy(tag, target, array.__array_interface__["data"][0], size, array)
        length = _record_size(WRITE_OFFSET + size)
        offset = self._reserve(length)
        _WRITE.pack_into(self._ring, offset, WRITE, length, tag, target, size)
        start = offset + WRITE_OFFSET
        self._ring[start : start + size] = data
        return self._issue()

    def fill(self, tag: int, target: int, count: int, value: int, width: int) -> int:
        """Store ``count`` values of ``width`` bytes."""
        offset = self._reserve(_FILL_SIZE)
        _FILL.pack_into(self._ring, offset, FILL, _FILL_SIZE, tag, target, count, value, width)
        return self._issue()

    def stamp(self, tag: int, target: int) -> int:
        """Store the time, in nanoseconds, at a host address."""
        offset = self._reserve(_STAMP_SIZE)
        _STAMP.pack_into(self._ring, offset, STAMP, _STAMP_SIZE, tag, target)
        return self._issue()

    def map(self, tag: int, entries: int, pages: int) -> int:
        """Mark pages as mapped."""
        offset = self._reserve(_MAP_SIZE)
        _MAP.pack_into(self._ring, offset, MAP, _MAP_SIZE, tag, entries, pages)
        return self._issue()

    def unmap(
        self, tag: int, entries: int, pages: int, address: int, size: int, file: int, at: int
    ) -> int:
        """Mark pages as not mapped and clear them; they are those ``at`` an offset of a file."""
        offset, head = self._reserve(_UNMAP_SIZE), (UNMAP, _UNMAP_SIZE, tag)
        _UNMAP.pack_into(self._ring, offset, *head, entries, pages, address, size, file, at)
        return self._issue()

    def _reserve(self, size: int) -> int:
        """Make room for a command; return its offset in the ring."""
        offset = self._head & (RING_SIZE - 1)
        room = RING_SIZE - offset
        need = size if size <= room else size + room
        if self._head + need > self._limit:
            self._wait_for_room(need)
        if size > room:
            _PAD.pack_into(self._ring, offset, PAD, room, 0)
            self._head += room
            offset = 0
        self._head += size
        return offset

    def _is_half_full(self) -> bool:
        """Return whether the ring is to be kept for what has to lie in it."""
        if self._limit - self._head >= RING_SIZE // 2:
            return False
        self._limit = self.words[_TAIL] + RING_SIZE
        return self._limit - self._head < RING_SIZE // 2

    def _wait_for_room(self, need: int) -> None:
        """Let half of the queue drain if it is full: one wake-up for many commands."""
        while True:
            self._limit = self.words[_TAIL] + RING_SIZE
            if self._head + need <= self._limit:
                return
            if self._closed:
                raise LinkClosed("the emulated device is closed")
            completed = self.words[_COMPLETED]
            self.wait(completed + max(1, (self.issued - completed) // 2), 60.0)

    def _issue(self) -> int:
        self.issued += 1
        self._publish(self._control, self._head)
        return self.issued

    def _keep(self, ticket: int, item: object) -> None:
        kept, completed = self._kept, self.words[_COMPLETED]
        while kept and kept[0][0] <= completed:
            kept.popleft()
        kept.append((ticket, item))

    def keep(self, item: object) -> None:
        """Keep an object alive until all commands issued so far are done."""
        with self.lock:
            self._keep(self.issued, item)

    # -- tickets -------------------------------------------------------------

    def done(self, ticket: int) -> bool:
        """Return whether a command has been executed or skipped."""
        return self.words[_COMPLETED] >= ticket

    def wait(self, ticket: int, timeout: float) -> bool:
        """Block without the GIL until a command is done; False after ``timeout`` seconds."""
        nanoseconds = min(int(timeout * 1e9), _LONGEST_WAIT) if timeout > 0 else 0
        return bool(self._wait_for(self._control, ticket, nanoseconds))

    def finish(self, ticket: int) -> None:
        """Block until a command is done, however long, or the device is closed."""
        while not self.wait(ticket, _WAIT_SLICE) and not self._closed:
            pass

    def fileno(self) -> int:
        """Return the descriptor that announces watched tickets and faults."""
        return self._descriptor

    def watch(self, ticket: int) -> None:
        """Announce a ticket once it is done."""
        with self.lock:
            if self._closed:
                return
            heapq.heappush(self._watched, ticket)
            self._watch(self._control, self._watched[0])

    def drain(self) -> None:
        """Take back the announcement; tickets not done yet will be announced."""
        if self._closed:
            return
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return
        with self.lock:
            while self._watched and self._watched[0] <= self.words[_COMPLETED]:
                heapq.heappop(self._watched)
            if self._watched:
                self._watch(self._control, self._watched[0])

    # -- failure and end -----------------------------------------------------

    def fault_words(self) -> tuple[int, int, int, int, int] | None:
        """Return code, tag, kernel, address and PTX line of what failed."""
        code = self.words[_FAULT]
        if not code:
            return None
        names = ("fault_tag", "fault_kernel", "error_address", "error_line")
        tag, kernel, address, line = (self.words[CONTROL[name]] for name in names)
        return code, tag, kernel, address, line

    def clear_fault(self) -> None:
        """Forget a failure; only while the engine is idle."""
        for name in ("error", "error_address", "error_line", "fault_tag", "fault_kernel", "fault"):
            self.words[CONTROL[name]] = 0

    def fail(self, code: int) -> None:
        """End the running kernel with ``code`` and skip all that is queued."""
        self._fail(self._control, code)

    def _watch_launches(self) -> None:
        assert self._watchdog_s is not None
        limit = int(self._watchdog_s * 1e9)
        since = CONTROL["running_since"]
        while not self._watchdog_stop.wait(min(self._watchdog_s / 4, 1.0)):
            began = self.words[since]
            if began and time.monotonic_ns() - began > limit:
                self.fail(LAUNCH_TIMEOUT)

    def close(self, timeout: float = 1.0) -> bool:
        """End what runs and the device thread; False if it did not end in time."""
        if self._closed:
            return not self._thread.is_alive()
        self._closed = True
        self._watchdog_stop.set()
        # Before anything is woken, so that no waiting call takes the end for a success.
        self.words[_FAULT] = self.words[_FAULT] or DEINITIALIZED
        self.fail(DEINITIALIZED)
        self._stop(self._control)
        self._thread.join(timeout)
        if self._watchdog is not None:
            self._watchdog.join(timeout)
        ended = not self._thread.is_alive()
        if ended:
            self._kept.clear()
            with self.lock:
                self.words[CONTROL["descriptor"]] = NOBODY
                os.close(self._descriptor)
        return ended


def _address(storage: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(storage))
