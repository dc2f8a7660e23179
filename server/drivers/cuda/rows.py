"""Fills and copies of rows: one call of the device for each."""

from __future__ import annotations

from typing import Any

from outlast.server.drivers.base import Rows
from outlast.server.drivers.cuda.memory import MemoryCalls
from outlast.server.drivers.cuda.objects import (
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Stream,
)
from outlast.server.drivers.cuda.staging import CHUNK


class RowCalls(MemoryCalls):
    """Rows that lie apart in device memory."""

    def fill_rows(
        self, address: int, rows: Rows, columns: int, value: int, width: int, stream: int
    ) -> int:
        """Enqueue a fill of each row; return a ``CUresult`` value."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE
        cuda = self.cuda
        fills = {1: cuda.cuMemsetD2D8Async, 2: cuda.cuMemsetD2D16Async, 4: cuda.cuMemsetD2D32Async}
        if not rows.valid or width not in fills or columns * width != rows.width:
            return INVALID_VALUE
        self.timeline.begin(found)
        bits = value & ((1 << 8 * width) - 1)
        (error,) = fills[width](address, rows.pitch, bits, columns, rows.count, found.raw)
        return self._issued(found, error)

    def write_rows(self, address: int, rows: Rows, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of dense data to rows; in the legacy stream all later work waits."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE
        if not rows.valid or len(data) != rows.size or len(data) > CHUNK:
            return INVALID_VALUE
        self.timeline.begin(found)
        try:
            chunk = self.staging.take()
        except MemoryError:
            return OUT_OF_MEMORY
        chunk.fill(memoryview(data))
        copy = self._copy_of(rows)
        copy.srcMemoryType = self.cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost, copy.srcPitch = chunk.address, rows.width
        self._to_device(copy, address, rows.pitch)
        code = self._issue(found, copy)
        mark = self.timeline.mark(found)
        self.staging.lend(chunk, mark)
        if not code and found is found.context.legacy:
            self.timeline.gate(mark)
        return code

    def read_rows(self, address: int, rows: Rows, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of rows into a dense buffer; return a ``CUresult`` value and that."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE, memoryview(b"")
        size = rows.size
        if not rows.valid or size > CHUNK:
            return INVALID_VALUE, memoryview(b"")
        self.timeline.begin(found)
        try:
            chunk = self.staging.take()
        except MemoryError:
            return OUT_OF_MEMORY, memoryview(b"")
        copy = self._copy_of(rows)
        self._from_device(copy, address, rows.pitch)
        copy.dstMemoryType = self.cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.dstHost, copy.dstPitch = chunk.address, rows.width
        code = self._issue(found, copy)
        return code, self.staging.reader(chunk, size, self.timeline.mark(found))

    def copy_rows(self, target: int, to: Rows, source: int, rows: Rows, stream: int) -> int:
        """Enqueue a copy between device addresses, of different devices too."""
        found = self._streams.get(stream)
        if found is None:
            return INVALID_HANDLE
        if not (rows.valid and to.valid and (to.count, to.width) == (rows.count, rows.width)):
            return INVALID_VALUE
        if self._owner(target) is not self._owner(source):
            return self._copy_to_peer(target, to, source, rows, stream)
        self.timeline.begin(found)
        copy = self._copy_of(rows)
        self._from_device(copy, source, rows.pitch)
        self._to_device(copy, target, to.pitch)
        return self._issue(found, copy)

    def _copy_to_peer(self, target: int, to: Rows, source: int, rows: Rows, stream: int) -> int:
        code = 0
        for row in range(rows.count):
            into, start = target + row * to.pitch, source + row * rows.pitch
            code = code or self.cuMemcpyDtoDAsync(into, start, rows.width, stream)[0]
        return code

    def _copy_of(self, rows: Rows) -> Any:
        copy = self.cuda.CUDA_MEMCPY2D()
        copy.WidthInBytes, copy.Height = rows.width, rows.count
        return copy

    def _to_device(self, copy: Any, address: int, pitch: int) -> None:
        copy.dstMemoryType = self.cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice, copy.dstPitch = self.cuda.CUdeviceptr(address), pitch

    def _from_device(self, copy: Any, address: int, pitch: int) -> None:
        copy.srcMemoryType = self.cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.srcPitch = self.cuda.CUdeviceptr(address), pitch

    def _issue(self, stream: Stream, copy: Any) -> int:
        return self._issued(stream, self.cuda.cuMemcpy2DAsync(copy, stream.raw)[0])
