"""Calls about device memory: allocation, copies, filling."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from outlast.server.drivers.emulated.arena import Allocation, Arena
from outlast.server.drivers.emulated.objects import Context, Stream
from outlast.server.drivers.emulated.results import (
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Refusal,
    cuda_call,
    number,
    size,
)
from outlast.server.drivers.emulated.state import DriverState


class MemoryCalls(DriverState):
    """Allocation, copies and filling."""

    @cuda_call(1)
    def cuMemAlloc(self, bytesize: Any) -> int:
        """Allocate zeroed device memory."""
        return self._allocate(size(bytesize), self._context())

    @cuda_call(1)
    def cuMemAllocAsync(self, bytesize: Any, hStream: Any) -> int:
        """Allocate zeroed device memory in a stream's order, which is that of issue."""
        return self._allocate(size(bytesize), self._stream(hStream).context)

    def _allocate(self, count: int, context: Context) -> int:
        if not count:
            raise Refusal(INVALID_VALUE)
        with self.engine.lock:
            address = context.device.arena.allocate(count, "alloc", context.handle)
        if address is None:
            raise Refusal(OUT_OF_MEMORY)
        return address

    @cuda_call()
    def cuMemFree(self, dptr: Any) -> None:
        """Free an allocation; work issued before may still use it."""
        self._context()
        self._free(number(dptr))

    @cuda_call()
    def cuMemFreeAsync(self, dptr: Any, hStream: Any) -> None:
        """Free an allocation in a stream's order, which is that of issue."""
        self._stream(hStream)
        self._free(number(dptr))

    def _free(self, address: int) -> None:
        if not address:
            return
        with self.engine.lock:
            for device in self._devices:
                block = device.arena.live.get(address)
                if block is not None and block.kind == "alloc":
                    device.arena.release(address)
                    return
        raise Refusal(INVALID_VALUE)

    @cuda_call(2)
    def cuMemGetInfo(self) -> tuple[int, int]:
        """Return free and total bytes."""
        arena = self._context().device.arena
        return arena.total - arena.used, arena.total

    @cuda_call(2)
    def cuMemGetAddressRange(self, dptr: Any) -> tuple[int, int]:
        """Return base and size of the allocation that holds an address."""
        self._context()
        block = self._block(number(dptr), 0)
        return block.address, block.size

    # -- copies --------------------------------------------------------------

    @cuda_call()
    def cuMemcpyHtoD(self, dstDevice: Any, srcHost: Any, ByteCount: Any) -> None:
        """Copy host memory to the device and wait."""
        count, target = size(ByteCount), number(dstDevice)
        stream = self._context().legacy
        self._check(target, count)
        source, owner = _host(srcHost, count)
        if count:
            with self.engine.lock:
                ticket = self.engine.copy(self.tag, target, source, count, owner)
                stream.issued(ticket)
            self._finish(ticket)

    @cuda_call()
    def cuMemcpyHtoDAsync(
        self, dstDevice: Any, srcHost: Any, ByteCount: Any, hStream: Any = 0
    ) -> None:
        """Copy pageable host memory to the device; it is read before the call returns."""
        count, target, stream = size(ByteCount), number(dstDevice), self._stream(hStream)
        self._check(target, count)
        source, owner = _host(srcHost, count)
        if count:
            data = ctypes.string_at(source, count)
            del owner
            with self.engine.lock:
                stream.issued(self.engine.write(self.tag, target, data))

    @cuda_call()
    def cuMemcpyDtoH(self, dstHost: Any, srcDevice: Any, ByteCount: Any) -> None:
        """Copy device memory to the host and wait."""
        self._read(dstHost, number(srcDevice), size(ByteCount), self._context().legacy)

    @cuda_call()
    def cuMemcpyDtoHAsync(
        self, dstHost: Any, srcDevice: Any, ByteCount: Any, hStream: Any = 0
    ) -> None:
        """Copy device memory to pageable host memory, which CUDA does before it returns."""
        self._read(dstHost, number(srcDevice), size(ByteCount), self._stream(hStream))

    @cuda_call()
    def cuMemcpyDtoD(self, dstDevice: Any, srcDevice: Any, ByteCount: Any) -> None:
        """Copy between device addresses."""
        self._copy(number(dstDevice), number(srcDevice), size(ByteCount), self._context().legacy)

    @cuda_call()
    def cuMemcpyDtoDAsync(
        self, dstDevice: Any, srcDevice: Any, ByteCount: Any, hStream: Any = 0
    ) -> None:
        """Copy between device addresses, in a stream."""
        self._copy(number(dstDevice), number(srcDevice), size(ByteCount), self._stream(hStream))

    def _read(self, target: Any, source: int, count: int, stream: Stream) -> None:
        self._check(source, count)
        address, owner = _host(target, count, writable=True)
        if count:
            with self.engine.lock:
                ticket = self.engine.copy(self.tag, address, source, count, owner)
                stream.issued(ticket)
            self._finish(ticket)

    def _copy(self, target: int, source: int, count: int, stream: Stream) -> None:
        self._check(target, count)
        self._check(source, count)
        if count:
            with self.engine.lock:
                stream.issued(self.engine.copy(self.tag, target, source, count))

    # -- filling -------------------------------------------------------------

    @cuda_call()
    def cuMemsetD8(self, dstDevice: Any, uc: Any, N: Any) -> None:
        """Fill bytes."""
        self._fill(dstDevice, uc, N, 1, self._context().legacy)

    @cuda_call()
    def cuMemsetD16(self, dstDevice: Any, us: Any, N: Any) -> None:
        """Fill 16-bit values."""
        self._fill(dstDevice, us, N, 2, self._context().legacy)

    @cuda_call()
    def cuMemsetD32(self, dstDevice: Any, ui: Any, N: Any) -> None:
        """Fill 32-bit values."""
        self._fill(dstDevice, ui, N, 4, self._context().legacy)

    @cuda_call()
    def cuMemsetD8Async(self, dstDevice: Any, uc: Any, N: Any, hStream: Any = 0) -> None:
        """Fill bytes, in a stream."""
        self._fill(dstDevice, uc, N, 1, self._stream(hStream))

    @cuda_call()
    def cuMemsetD16Async(self, dstDevice: Any, us: Any, N: Any, hStream: Any = 0) -> None:
        """Fill 16-bit values, in a stream."""
        self._fill(dstDevice, us, N, 2, self._stream(hStream))

    @cuda_call()
    def cuMemsetD32Async(self, dstDevice: Any, ui: Any, N: Any, hStream: Any = 0) -> None:
        """Fill 32-bit values, in a stream."""
        self._fill(dstDevice, ui, N, 4, self._stream(hStream))

    def _fill(self, target: Any, value: Any, elements: Any, width: int, stream: Stream) -> None:
        address, count = number(target), size(elements)
        if address % width:
            raise Refusal(INVALID_VALUE)
        self._check(address, count * width)
        if count:
            bits = number(value) & ((1 << 8 * width) - 1)
            with self.engine.lock:
                stream.issued(self.engine.fill(self.tag, address, count, bits, width))

    # -- ranges --------------------------------------------------------------

    def _check(self, address: int, count: int) -> None:
        """Refuse a range that does not lie in one allocation; an empty one may lie anywhere."""
        if count:
            self._block(address, count)

    def _block(self, address: int, count: int) -> Allocation:
        for device in self._devices:
            arena: Arena = device.arena
            if arena.base <= address < arena.base + arena.size:
                block = arena.find(address)
                if block is not None and address + count <= block.address + block.size:
                    return block
        raise Refusal(INVALID_VALUE)


def _host(memory: Any, count: int, *, writable: bool = False) -> tuple[int, Any]:
    """Return the address of host memory, and what keeps it alive."""
    if hasattr(memory, "__buffer__") or isinstance(
        memory, bytes | bytearray | memoryview | np.ndarray | ctypes.Array | ctypes.Structure
    ):
        try:
            array = np.frombuffer(memory, np.uint8)
        except (ValueError, BufferError) as error:
            raise Refusal(INVALID_VALUE) from error
        if array.nbytes < count or (writable and not array.flags.writeable):
            raise Refusal(INVALID_VALUE)
        return int(array.__array_interface__["data"][0]), array
    address = number(memory)
    if count and not address:
        raise Refusal(INVALID_VALUE)
    return address, None
