"""Threads that block until the device has passed a mark, and then write a descriptor.

Each sits in a call that waits without the GIL. What it waits for is an event that blocks
instead of spinning, recorded in a stream of its own that waits for the mark: such events
cost an interrupt, so marks themselves are not of that kind. One is recorded at a time, for
recording many of them behind a stream that stands still blocks (measured on an H200).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Any

from outlast.server.drivers.cuda.objects import NOT_READY, Context, Mark, Stream
from outlast.server.drivers.cuda.timeline import PLAIN

#: Most watchers a context has; streams beyond share them.
MOST = 8
_BLOCKING_SYNC = 1
_NON_BLOCKING = 1
_JOIN = 2.0  # seconds


class _Watcher:
    """A stream and, from when it is needed, its thread."""

    def __init__(self, cuda: Any, context: Context, index: int) -> None:
        self._cuda = cuda
        self._context = context.handle
        cuda.cuCtxPushCurrent(self._context)
        self._error, self._stream = cuda.cuStreamCreateWithPriority(_NON_BLOCKING, 0)
        if not self._error:
            self._error, self._event = cuda.cuEventCreate(_BLOCKING_SYNC | PLAIN)
            if self._error:
                cuda.cuStreamDestroy(self._stream)
        cuda.cuCtxPopCurrent()
        self._queue: queue.SimpleQueue[tuple[Mark, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"watcher-{index}", daemon=True)

    def watch(self, mark: Mark, descriptor: int) -> int:
        """Write ``descriptor`` once ``mark`` is passed; return a ``CUresult`` value."""
        if self._error:
            return int(self._error)
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put((mark, descriptor))
        return 0

    def close(self) -> None:
        """End the thread once what it watches is over."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(_JOIN)
        if not (self._error or self._thread.is_alive()):
            self._cuda.cuEventDestroy(self._event)
            self._cuda.cuStreamDestroy(self._stream)

    def _run(self) -> None:
        self._cuda.cuCtxSetCurrent(self._context)
        while (item := self._queue.get()) is not None:
            mark, descriptor = item
            self._wait(mark)
            # Whatever has become of it, somebody has to look.
            announce(descriptor)
            del item, mark  # its event can be used again

    def _wait(self, mark: Mark) -> None:
        cuda = self._cuda
        error = int(cuda.cuEventQuery(mark.raw)[0])
        if error == NOT_READY:
            error = cuda.cuStreamWaitEvent(self._stream, mark.raw, 0)[0]
            error = error or cuda.cuEventRecord(self._event, self._stream)[0]
            if not error:
                cuda.cuEventSynchronize(self._event)


class Watchers:
    """The watchers of one worker.

    Their streams are made with the context: what is made later moves the variables of modules
    that are loaded later still.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._by_context: dict[Context, list[_Watcher]] = {}
        self._by_stream: dict[Stream, _Watcher] = {}

    def prepare(self, context: Context) -> None:
        """Make the watchers of a context."""
        made = [_Watcher(self._cuda, context, index) for index in range(MOST)]
        self._by_context[context] = made

    def watch(self, mark: Mark, descriptor: int) -> int:
        """Make ``descriptor`` readable once ``mark`` is passed; return a ``CUresult`` value."""
        stream = mark.stream
        watcher = self._by_stream.get(stream)
        if watcher is None:
            watchers = self._by_context[stream.context]
            watcher = self._by_stream[stream] = watchers[len(self._by_stream) % MOST]
        return watcher.watch(mark, descriptor)

    def forget(self, stream: Stream) -> None:
        """Let a stream that is destroyed have no watcher; the next stream gets it."""
        self._by_stream.pop(stream, None)

    def close(self, context: Context | None = None) -> None:
        """End the watchers of a context, or all."""
        for owner in [context] if context is not None else list(self._by_context):
            for watcher in self._by_context.pop(owner, []):
                watcher.close()
            for stream in [s for s in self._by_stream if s.context is owner]:
                del self._by_stream[stream]


def announce(descriptor: int) -> None:
    """Make an event descriptor readable; one that is closed meanwhile does not matter."""
    with contextlib.suppress(OSError):
        os.eventfd_write(descriptor, 1)
