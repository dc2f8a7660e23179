"""The emulated device as a `Driver`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outlast.errors import CheckpointError
from outlast.server.drivers.base import (
    DeviceInfo,
    Driver,
    Fault,
    ModuleInfo,
    OwnedRegion,
    Piece,
    Region,
    SharedMemory,
)
from outlast.server.drivers.emulated.devices import DeviceCalls
from outlast.server.drivers.emulated.launch import LaunchCalls
from outlast.server.drivers.emulated.link_calls import LinkCalls
from outlast.server.drivers.emulated.occupancy import OccupancyCalls
from outlast.server.drivers.emulated.results import (
    INVALID_DEVICE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Refusal,
)
from outlast.server.drivers.emulated.rows import RowCalls
from outlast.server.drivers.emulated.streams import EventCalls, StreamCalls
from outlast.server.drivers.emulated.vmm_calls import VmmCalls


class EmulatedDriver(
    DeviceCalls,
    LaunchCalls,
    OccupancyCalls,
    LinkCalls,
    RowCalls,
    VmmCalls,
    StreamCalls,
    EventCalls,
    Driver,
):
    """A CUDA device that runs PTX on the CPU, deterministically.

    Parameters
    ----------
    devices
        Number of devices.
    memory
        Bytes of memory of each device; by default ``LUPINE_EMULATED_MEMORY`` or 4 GiB.
    base, arena_size
        Addresses of the first device, and how many each device gets.
    watchdog_s
        Seconds after which a running kernel is ended with 702.
    capture_output
        Keep device printf for `take_output` instead of printing it when a call waits.

    Raises
    ------
    RestoreFailed
        The device's addresses are taken in this process.
    ConfigError
        An option cannot be used.
    """

    name = "emulated"

    def devices(self) -> Sequence[DeviceInfo]:
        """Return every device."""
        return [device.info for device in self._devices]

    def fileno(self) -> int:
        """Return the descriptor that announces watched tickets and faults."""
        return self.engine.fileno()

    def drain(self) -> None:
        """Make `fileno` unreadable again."""
        self.engine.drain()

    def ticket(self, stream: int | None = None) -> int:
        """Name all work enqueued so far; 0 for a stream that is gone."""
        if stream is None:
            return self.engine.issued
        if stream > 2:
            found = self._streams.get(stream)
            return found.ticket if found is not None else 0
        context = self._current.context
        if context is None:
            return self.engine.issued
        return context.per_thread.ticket if stream == 2 else context.blocking_ticket

    def event_ticket(self, event: int) -> int:
        """Name the latest record of ``event``; 0 if never recorded."""
        found = self._events.get(event)
        return found.ticket if found is not None else 0

    def order_after(self, ticket: int) -> None:
        """Let later work run behind ``ticket``'s: the engine goes by the order of issue anyway."""

    def done(self, ticket: int) -> bool:
        """Return whether the work behind ``ticket`` has completed or was skipped."""
        return self.engine.done(ticket)

    def order_all(self) -> None:
        """Do nothing: all work runs in the order of issue."""

    def watch(self, ticket: int) -> None:
        """Make `fileno` readable once ``ticket`` is done."""
        self.engine.watch(ticket)

    def wait_any(self, tickets: Sequence[int], timeout: float) -> bool:
        """Block without the GIL until one of ``tickets`` is done; False after ``timeout``."""
        return self.engine.wait(min(tickets), timeout)  # they are done in the order of issue

    def wait(self, ticket: int, timeout: float) -> bool:
        """Block without the GIL until ``ticket`` is done; False after ``timeout`` seconds."""
        return self.engine.wait(ticket, timeout)

    def fault(self) -> Fault | None:
        """Return the fault that poisoned the contexts, if any."""
        return super().fault()

    def enqueue_read(self, address: int, size: int, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of device bytes into a fresh host buffer."""
        target = np.empty(size, np.uint8)
        code = self.fault_code()
        try:
            if not code:
                queue = self._stream(stream)
                self._check(address, size)
                if size:
                    place = int(target.__array_interface__["data"][0])
                    with self.engine.lock:
                        ticket = self.engine.copy(self.tag, place, address, size, target)
                        queue.issued(ticket)
        except Refusal as refusal:
            code = refusal.code
        return code, target.data

    def enqueue_write(self, address: int, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of ``data`` to the device."""
        code = self.fault_code()
        if code:
            return code
        if isinstance(data, memoryview) and not (data.itemsize == 1 and data.c_contiguous):
            data = data.tobytes()
        try:
            queue = self._stream(stream)
            self._check(address, len(data))
        except Refusal as refusal:
            return refusal.code
        if len(data):
            with self.engine.lock:
                queue.issued(self.engine.write(self.tag, address, data))
        return 0

    def module_info(self, module: int) -> ModuleInfo:
        """Return what a module loaded by `cuModuleLoadData` offers."""
        return super().module_info(module)

    def describe_image(self, image: bytes) -> tuple[int, ModuleInfo | None]:
        """Return what a module of an image would offer, with its variables nowhere."""
        return super().describe_image(image)

    def allocate_at(self, device: int, address: int, size: int, stream: int | None = None) -> int:
        """Allocate exactly at ``address``, in the current context or the primary one.

        With a ``stream``, do it in that one's context; order of issue is that of all streams.
        """
        code = self.fault_code()
        if code:
            return code
        if not 0 <= device < len(self._devices):
            return INVALID_DEVICE
        if size <= 0:
            return INVALID_VALUE
        found = self._devices[device]
        try:
            context = self._current.context if stream is None else self._stream(stream).context
        except Refusal as refusal:
            return refusal.code
        owner = context if context is not None and context.device is found else found.primary
        with self.engine.lock:
            got = found.arena.allocate(size, "alloc", owner.handle, at=address)
        return 0 if got is not None else OUT_OF_MEMORY

    def load_module_at(self, image: bytes, addresses: dict[str, int]) -> tuple[int, int]:
        """Load an image with its variables at given addresses."""
        return super().load_module_at(image, addresses)

    def regions(self) -> Sequence[Region]:
        """Return every live allocation and module variable, by address."""
        return [
            Region(device.info.ordinal, block.address, block.size, block.kind)
            for device in self._devices
            for block in device.arena.allocations()
        ]

    def view(self, region: Region) -> memoryview:
        """Return the bytes of a region, writable; only while the device is idle and open."""
        return self._devices[region.device].arena.view(region.address, region.size)

    def read(self, region: Region, offset: int, target: memoryview) -> None:
        """Copy bytes of a region of the idle device into ``target``."""
        source = self.view(region)[offset : offset + target.nbytes]
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))

    def write(self, region: Region, offset: int, data: memoryview) -> None:
        """Copy ``data`` into a region of the idle device."""
        target = self.view(region)[offset : offset + data.nbytes]
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))

    def pieces(self) -> list[Piece]:
        """Return each device's memory in which something lives, with the size that is used."""
        return [
            Piece(device.info.ordinal, device.arena.base, device.arena.used)
            for device in self._devices
            if device.arena.live
        ]

    def share(self, piece: Piece) -> int:
        """Return a descriptor of a device's memory."""
        try:
            return self._devices[piece.device].arena.share()
        except OSError as error:
            raise CheckpointError(f"device memory cannot be shared: {error}") from error

    def adopt(self, memory: Sequence[SharedMemory], allocations: Sequence[OwnedRegion]) -> int:
        """Take over shared memory and what lives in it, at the same addresses."""
        files = {part.device: part.descriptor for part in memory}
        for device in self._devices:
            ordinal = device.info.ordinal
            live = [(a.address, a.size) for a in allocations if a.device == ordinal]
            if live and not (ordinal in files and device.arena.adopt(files[ordinal], live)):
                return INVALID_VALUE
        for owned in allocations:
            self.cuCtxSetCurrent(owned.context)
            code = self.allocate_at(owned.device, owned.address, owned.size)
            if code:
                return code
        self.engine.finish(self.engine.issued)
        return 0

    def close(self) -> None:
        """End running kernels, stop the device's thread and give its memory back."""
        self._release()
