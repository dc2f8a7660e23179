"""Regions to and from the host at full speed, while the device is idle.

Several lanes at once, each with pinned memory and a stream of its own: while one waits for
the device, another copies between pinned and ordinary memory. Both go on without the GIL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from outlast.errors import CheckpointError
from outlast.server.drivers.cuda.pinned import PinnedMemory

LANES = 4
#: Bytes that a lane moves at once.
PIECE = 4 << 20
_NON_BLOCKING = 1


class _Lane:
    """A stream and, from when it is needed, pinned memory."""

    def __init__(self, cuda: Any, context: int) -> None:
        self._cuda = cuda
        self._context = context
        cuda.cuCtxPushCurrent(context)
        error, self.stream = cuda.cuStreamCreateWithPriority(_NON_BLOCKING, 0)
        cuda.cuCtxPopCurrent()
        self._error = int(error)
        self._memory: PinnedMemory | None = None

    def prepare(self) -> None:
        """Have what it needs; the context is current.

        Raises
        ------
        CheckpointError
            There is no pinned memory, or no stream.
        """
        if self._error:
            raise CheckpointError(f"no stream to copy in: error {self._error}")
        if self._memory is not None:
            return
        try:
            self._memory = PinnedMemory(self._cuda, PIECE)
        except MemoryError as error:
            raise CheckpointError(f"no pinned memory to copy through: {error}") from error
        self.address = self._memory.address
        self._array = np.frombuffer(self._memory.view(0, PIECE), np.uint8)

    def read(self, address: int, target: Any, first: int) -> int:
        """Read every piece of this lane into ``target``; return a ``CUresult`` value."""
        cuda = self._cuda
        cuda.cuCtxSetCurrent(self._context)
        for start in range(first, len(target), LANES * PIECE):
            size = min(PIECE, len(target) - start)
            error = cuda.cuMemcpyDtoHAsync(self.address, address + start, size, self.stream)[0]
            error = error or cuda.cuStreamSynchronize(self.stream)[0]
            if error:
                return int(error)
            np.copyto(target[start : start + size], self._array[:size])
        return 0

    def write(self, address: int, source: Any, first: int) -> int:
        """Write every piece of this lane from ``source``; return a ``CUresult`` value."""
        cuda = self._cuda
        cuda.cuCtxSetCurrent(self._context)
        for start in range(first, len(source), LANES * PIECE):
            size = min(PIECE, len(source) - start)
            np.copyto(self._array[:size], source[start : start + size])
            error = cuda.cuMemcpyHtoDAsync(address + start, self.address, size, self.stream)[0]
            error = error or cuda.cuStreamSynchronize(self.stream)[0]
            if error:
                return int(error)
        return 0

    def close(self) -> None:
        """Give memory and stream back."""
        if not self._error:
            self._cuda.cuStreamDestroy(self.stream)
        if self._memory is not None:
            self._memory.close()


class Transfer:
    """Copies whole regions of one device.

    Its streams are made at once, with the context: what is made later moves the variables of
    modules that are loaded later still.
    """

    def __init__(self, cuda: Any, context: int) -> None:
        self._cuda = cuda
        self._context = context
        self._lanes = [_Lane(cuda, context) for _ in range(LANES)]
        self._pool: ThreadPoolExecutor | None = None

    def prepare(self) -> None:
        """Have what copying needs (in the main thread).

        Raises
        ------
        CheckpointError
            There is no pinned memory, or no stream.
        """
        if self._pool is not None:
            return
        self._cuda.cuCtxPushCurrent(self._context)
        try:
            for lane in self._lanes:
                lane.prepare()
        finally:
            self._cuda.cuCtxPopCurrent()
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="transfer")

    def read(self, address: int, target: memoryview) -> None:
        """Copy device memory into ``target``.

        Raises
        ------
        CheckpointError
            The device fails.
        """
        self._run("read", address, np.frombuffer(target, np.uint8))

    def write(self, address: int, source: memoryview) -> None:
        """Copy ``source`` into device memory.

        Raises
        ------
        CheckpointError
            The device fails.
        """
        self._run("write", address, np.frombuffer(source, np.uint8))

    def close(self) -> None:
        """End the threads and give the memory back."""
        if self._pool is not None:
            self._pool.shutdown()
        self._cuda.cuCtxPushCurrent(self._context)
        for lane in self._lanes:
            lane.close()
        self._cuda.cuCtxPopCurrent()

    def _run(self, what: str, address: int, array: Any) -> None:
        if not len(array):
            return
        # Every lane does something to its own part of the pieces, in its own thread.
        pool = self._pool
        assert pool is not None
        futures = [
            pool.submit(getattr(lane, what), address, array, index * PIECE)
            for index, lane in enumerate(self._lanes)
            if index * PIECE < len(array)
        ]
        errors = [error for error in [future.result() for future in futures] if error]
        if errors:
            raise CheckpointError(f"memory at {address:#x} cannot be copied: error {errors[0]}")
