"""Fills and copies of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outlast.server.drivers.base import Rows
from outlast.server.drivers.emulated.memory_calls import MemoryCalls
from outlast.server.drivers.emulated.results import INVALID_VALUE, Refusal, cuda_call


class RowCalls(MemoryCalls):
    """Rows that lie apart in device memory: one command of the engine for each."""

    def fill_rows(
        self, address: int, rows: Rows, columns: int, value: int, width: int, stream: int
    ) -> int:
        """Enqueue a fill of each row; return a ``CUresult`` value."""
        return int(self._fill_rows(address, rows, columns, value, width, stream)[0])

    @cuda_call()
    def _fill_rows(
        self, address: int, rows: Rows, columns: int, value: int, width: int, stream: int
    ) -> None:
        queue = self._stream(stream)
        self._check_rows(address, rows)
        if address % width or rows.pitch % width or columns * width != rows.width:
            raise Refusal(INVALID_VALUE)
        bits = value & ((1 << 8 * width) - 1)
        with self.engine.lock:
            for row in range(rows.count):
                start = address + row * rows.pitch
                queue.issued(self.engine.fill(self.tag, start, columns, bits, width))

    def write_rows(self, address: int, rows: Rows, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of dense data to rows; return a ``CUresult`` value."""
        return int(self._write_rows(address, rows, bytes(data), stream)[0])

    @cuda_call()
    def _write_rows(self, address: int, rows: Rows, data: bytes, stream: int) -> None:
        queue = self._stream(stream)
        self._check_rows(address, rows)
        if len(data) != rows.size:
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            for row in range(rows.count):
                part = data[row * rows.width : (row + 1) * rows.width]
                queue.issued(self.engine.write(self.tag, address + row * rows.pitch, part))

    def read_rows(self, address: int, rows: Rows, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of rows into a dense buffer; return a ``CUresult`` value and that."""
        target = np.empty(rows.size, np.uint8)
        return int(self._read_rows(address, rows, target, stream)[0]), target.data

    @cuda_call()
    def _read_rows(self, address: int, rows: Rows, target: NDArray[np.uint8], stream: int) -> None:
        queue = self._stream(stream)
        self._check_rows(address, rows)
        place = int(target.__array_interface__["data"][0])
        with self.engine.lock:
            for row in range(rows.count):
                into, start = place + row * rows.width, address + row * rows.pitch
                queue.issued(self.engine.copy(self.tag, into, start, rows.width, target))

    def copy_rows(self, target: int, to: Rows, source: int, rows: Rows, stream: int) -> int:
        """Enqueue a copy between device addresses; return a ``CUresult`` value."""
        return int(self._copy_rows(target, to, source, rows, stream)[0])

    @cuda_call()
    def _copy_rows(self, target: int, to: Rows, source: int, rows: Rows, stream: int) -> None:
        queue = self._stream(stream)
        self._check_rows(target, to)
        self._check_rows(source, rows)
        if (to.count, to.width) != (rows.count, rows.width):
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            for row in range(rows.count):
                into, start = target + row * to.pitch, source + row * rows.pitch
                queue.issued(self.engine.copy(self.tag, into, start, rows.width))

    def _check_rows(self, address: int, rows: Rows) -> None:
        """Refuse rows that overlap, or that do not lie in one allocation."""
        if not rows.valid:
            raise Refusal(INVALID_VALUE)
        self._check(address, rows.extent)
