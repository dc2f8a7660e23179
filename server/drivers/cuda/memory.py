"""Calls about device memory: allocation, copies, filling."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlast.server.drivers.cuda.contexts import EventCalls
from outlast.server.drivers.cuda.objects import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Context,
    Device,
    Stream,
)
from outlast.server.drivers.cuda.staging import CHUNK, SMALL
from outlast.server.drivers.cuda.timeline import Timeline
from outlast.server.drivers.lanes import Lane


@dataclass(frozen=True, slots=True)
class _Lane:
    """A stream as an arena sees it."""

    timeline: Timeline
    stream: Stream

    def fence(self) -> int:
        return self.timeline.ticket(self.stream)

    def follow(self, fence: int) -> None:
        self.timeline.follow(self.stream, fence)


class MemoryCalls(EventCalls):
    """Allocation, copies and filling."""

    def cuMemAlloc(self, bytesize: int) -> tuple[int, int]:
        """Allocate device memory; the arena chooses the address."""
        context = self._current
        if context is None:
            return INVALID_CONTEXT, 0
        return self._allocate(context, bytesize, None)

    def cuMemAllocAsync(self, bytesize: int, hStream: int) -> tuple[int, int]:
        """Allocate device memory in a stream's order and context."""
        stream = self._streams.get(hStream)
        if stream is None:
            return INVALID_HANDLE, 0
        return self._allocate(stream.context, bytesize, None, stream)

    def allocate_at(self, device: int, address: int, size: int, stream: int | None = None) -> int:
        """Allocate exactly at ``address``, in the current context or the primary one.

        With a ``stream``, do it in that one's order and context.
        """
        found = self._device(device)
        if found is None:
            return INVALID_DEVICE
        if stream is not None:
            lane = self._streams.get(stream)
            if lane is None or lane.context.device is not found:
                return INVALID_HANDLE
            return self._allocate(lane.context, size, address, lane)[0]
        context = self._current
        if context is None or context.device is not found:
            context = self._open(found)
        return self._allocate(context, size, address)[0]

    def _allocate(
        self, context: Context, size: int, at: int | None, stream: Stream | None = None
    ) -> tuple[int, int]:
        if size <= 0:
            return INVALID_VALUE, 0
        arena = context.device.arena
        with nullcontext() if context is self._current else self.within(context):
            error, address = arena.allocate(size, at, self._lane(stream))
        if error:
            return self.failed(error), 0
        context.memory.add(address)
        return 0, address

    def cuMemFree(self, dptr: int) -> tuple[int]:
        """Free an allocation; work issued before may still use it."""
        return (self._free(dptr, None),)

    def cuMemFreeAsync(self, dptr: int, hStream: int) -> tuple[int]:
        """Free an allocation in a stream's order; the work before it may still use it."""
        stream = self._streams.get(hStream)
        return (INVALID_HANDLE if stream is None else self._free(dptr, stream),)

    def _free(self, address: int, stream: Stream | None) -> int:
        for context in self._contexts.values():
            if address in context.memory:
                context.memory.discard(address)
                return context.device.arena.release(address, self._lane(stream))
        return INVALID_VALUE if address else 0

    def _lane(self, stream: Stream | None) -> Lane | None:
        return _Lane(self.timeline, stream) if stream is not None else None

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        """Return free and total bytes; chunks that are mapped but empty count as free."""
        context = self._current
        if context is None:
            return INVALID_CONTEXT, 0, 0
        error, free, total = self.cuda.cuMemGetInfo()
        if error:
            return self.failed(int(error)), 0, 0
        return 0, int(free) + context.device.arena.reclaimable, int(total)

    def cuMemGetAddressRange(self, dptr: int) -> tuple[int, int, int]:
        """Return base and size of the allocation that holds an address."""
        for device in self._devices:
            block = device.arena.find(dptr)
            if block is not None:
                return 0, block.address, block.size
        return INVALID_VALUE, 0, 0

    # -- filling and moving --------------------------------------------------------------------

    def cuMemsetD8Async(self, dstDevice: int, uc: int, N: int, hStream: int = 0) -> tuple[int]:
        """Fill bytes."""
        return self._fill(self.cuda.cuMemsetD8Async, dstDevice, uc, N, hStream)

    def cuMemsetD16Async(self, dstDevice: int, us: int, N: int, hStream: int = 0) -> tuple[int]:
        """Fill 16-bit values."""
        return self._fill(self.cuda.cuMemsetD16Async, dstDevice, us, N, hStream)

    def cuMemsetD32Async(self, dstDevice: int, ui: int, N: int, hStream: int = 0) -> tuple[int]:
        """Fill 32-bit values."""
        return self._fill(self.cuda.cuMemsetD32Async, dstDevice, ui, N, hStream)

    def _fill(self, fill: Any, target: int, value: int, count: int, handle: int) -> tuple[int]:
        stream = self._streams.get(handle)
        if stream is None:
            return (INVALID_HANDLE,)
        self.timeline.begin(stream)
        return (self._issued(stream, fill(target, value, count, stream.raw)[0]),)

    def cuMemcpyDtoDAsync(
        self, dstDevice: int, srcDevice: int, ByteCount: int, hStream: int = 0
    ) -> tuple[int]:
        """Copy between device addresses, of different devices too."""
        stream = self._streams.get(hStream)
        if stream is None:
            return (INVALID_HANDLE,)
        target, source = self._owner(dstDevice), self._owner(srcDevice)
        self.timeline.begin(stream)
        if target is source or target is None or source is None:
            error = self.cuda.cuMemcpyDtoDAsync(dstDevice, srcDevice, ByteCount, stream.raw)[0]
        else:
            # This way neither device needs access to the other's memory.
            error = self.cuda.cuMemcpyPeerAsync(
                dstDevice,
                self._open(target).handle,
                srcDevice,
                self._open(source).handle,
                ByteCount,
                stream.raw,
            )[0]
        return (self._issued(stream, error),)

    def _owner(self, address: int) -> Device | None:
        """Return the device in whose arena an address is."""
        for device in self._devices:
            if 0 <= address - device.info.arena_base < device.info.arena_size:
                return device
        return None

    def _issued(self, stream: Stream, error: Any) -> int:
        """Note what was just issued, or its failure."""
        if error:
            return self.failed(int(error))
        self._work_tag = self.tag
        self.timeline.issued(stream)
        return 0

    # -- to and from the host ------------------------------------------------------------------

    def enqueue_write(self, address: int, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of ``data`` to the device; in the legacy stream all later work waits."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE
        self.timeline.begin(found)
        code = 0
        size = len(data)
        try:
            if size <= SMALL:
                code = self._write_small(found, address, data, size) if size else 0
            else:
                view = memoryview(data)
                for start in range(0, size, CHUNK):
                    code = code or self._write_chunk(
                        found, address + start, view[start : start + CHUNK]
                    )
        except MemoryError:
            return OUT_OF_MEMORY
        if not code and size and found is found.context.legacy:
            # The program may use the data anywhere from now on, as after any synchronous copy.
            mark = found.mark if not found.dirty else None
            self.timeline.gate(mark or self.timeline.mark(found))
        return code

    def _write_small(self, stream: Stream, address: int, data: Any, size: int) -> int:
        chunk, offset = self.staging.place(stream, size)
        chunk.view[offset : offset + size] = data
        error = self.cuda.cuMemcpyHtoDAsync(address, chunk.address + offset, size, stream.raw)[0]
        return self._issued(stream, error)

    def _write_chunk(self, stream: Stream, address: int, data: memoryview) -> int:
        source = self.receiving.address(data)
        if source:
            error = self.cuda.cuMemcpyHtoDAsync(address, source, len(data), stream.raw)[0]
            code = self._issued(stream, error)
            self.receiving.hold(data, self.timeline.mark(stream))
            return code
        chunk = self.staging.take()
        size = len(data)
        chunk.fill(data)
        error = self.cuda.cuMemcpyHtoDAsync(address, chunk.address, size, stream.raw)[0]
        code = self._issued(stream, error)
        self.staging.lend(chunk, self.timeline.mark(stream))
        return code

    def enqueue_read(self, address: int, size: int, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of device bytes into a fresh host buffer."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE, memoryview(b"")
        if not size:
            return 0, memoryview(b"")
        self.timeline.begin(found)
        try:
            if size <= SMALL or size > CHUNK:
                return self._read_copied(found, address, size)
            chunk = self.staging.take()
        except MemoryError:
            return OUT_OF_MEMORY, memoryview(b"")
        code = self._read_into(found, address, chunk.address, size)
        mark = self.timeline.mark(found)
        return code, self.staging.reader(chunk, size, mark)

    def _read_copied(self, stream: Stream, address: int, size: int) -> tuple[int, memoryview]:
        """Read through shared chunks into memory of its own."""
        target = np.empty(size, np.uint8).data
        for start in range(0, size, SMALL):
            length = min(SMALL, size - start)
            chunk, offset = self.staging.place(stream, length)
            code = self._read_into(stream, address + start, chunk.address + offset, length)
            if code:
                return code, target
            # The data goes on to its target when this mark is seen to be passed.
            mark = self.timeline.mark(stream)
            source = chunk.view[offset : offset + length]
            stream.landings.append((mark.number, source, target[start : start + length]))
        return 0, target

    def _read_into(self, stream: Stream, address: int, target: int, size: int) -> int:
        error = self.cuda.cuMemcpyDtoHAsync(target, address, size, stream.raw)[0]
        return self._issued(stream, error)
