"""The cuda device as a `Driver`."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence

from outlast.errors import CheckpointError
from outlast.server.drivers.base import DeviceInfo, Driver, OwnedRegion, Piece, Region, SharedMemory
from outlast.server.drivers.cuda.queries import QueryCalls
from outlast.server.drivers.cuda.state import result_name
from outlast.server.drivers.cuda.transfer import Transfer
from outlast.server.drivers.cuda.watchers import announce
from outlast.server.drivers.placement import Block, Chunk

#: How long a wait asks again and again before it blocks.
SPIN = 200e-6  # seconds
#: How long `close` waits for the device.
_CLOSE = 2.0  # seconds


class CudaDriver(QueryCalls, Driver):
    """The GPUs of this host through `cuda.bindings.driver`.

    One process makes one, in its main thread, which alone calls it. Parameters are those
    of `DriverState`.

    Raises
    ------
    RestoreFailed
        The devices' addresses are taken in this process.
    ConfigError
        There is no device, or the bindings are missing.
    """

    name = "cuda"

    def devices(self) -> Sequence[DeviceInfo]:
        """Return every device."""
        return [device.info for device in self._devices]

    def fileno(self) -> int:
        """Return the descriptor that announces watched tickets and faults."""
        return self._descriptor

    def drain(self) -> None:
        """Make `fileno` unreadable again."""
        _drain(self._descriptor)
        self.tidy()

    def tidy(self) -> None:
        """Give up what was freed, as far as the work that may use it has ended."""
        for device in self._devices:
            device.arena.trim()
        if self._parting:
            self._expel()
        if self._dying:
            self._bury()
        if self._leaving:
            self._unload()

    # -- tickets -------------------------------------------------------------------------------

    def ticket(self, stream: int | None = None) -> int:
        """Name all work enqueued so far; 0 for a stream that is gone."""
        if stream is None:
            return self.timeline.fence()
        found = self._streams.get(stream)
        return self.timeline.ticket(found) if found is not None else 0

    def event_ticket(self, event: int) -> int:
        """Name the latest record of ``event``; 0 if never recorded."""
        found = self._events.get(event)
        if found is None or found.mark is None:
            return 0
        return self.timeline.name(found.mark)

    def order_after(self, ticket: int) -> None:
        """Let what is enqueued from now on, in any stream, run behind ``ticket``'s work."""
        self.timeline.order_after(ticket)

    def done(self, ticket: int) -> bool:
        """Return whether the work behind ``ticket`` has completed (or a fault ended it)."""
        return self.timeline.done(ticket)

    def order_all(self) -> None:
        """Let all that is issued from now on, on any stream, run behind all work so far."""
        self.timeline.order_after(self.timeline.fence())

    def watch(self, ticket: int) -> None:
        """Make `fileno` readable once ``ticket`` is done."""
        self._watch(ticket, self._descriptor)

    def wait(self, ticket: int, timeout: float) -> bool:
        """Block without the GIL until ``ticket`` is done; False after ``timeout`` seconds."""
        return self.wait_any([ticket], timeout)

    def wait_any(self, tickets: Sequence[int], timeout: float) -> bool:
        """Block without the GIL until one of ``tickets`` is done; False after ``timeout``."""
        end = time.monotonic() + timeout
        if self.timeline.spin(tickets, min(timeout, SPIN)):
            return True
        if timeout <= SPIN:
            return False
        _drain(self._blocked)
        for ticket in tickets:
            self._watch(ticket, self._blocked)
        while not any(map(self.timeline.done, tickets)):
            left = end - time.monotonic()
            if left <= 0:
                return False
            if select.select([self._blocked], [], [], left)[0]:
                _drain(self._blocked)
        return True

    def _watch(self, ticket: int, descriptor: int) -> None:
        marks = self.timeline.open(ticket)
        if not marks:
            announce(descriptor)
        for mark in marks:
            error = self._watchers.watch(mark, descriptor)
            if error:
                self.failed(error)
                announce(descriptor)

    # -- regions -------------------------------------------------------------------------------

    def regions(self) -> Sequence[Region]:
        """Return every live allocation and module variable, by address."""
        found = [
            Region(device.info.ordinal, block.address, block.size)
            for device in self._devices
            for block in device.arena.allocations()
        ]
        found += [
            Region(module.context.device.info.ordinal, g.address, g.size, "global")
            for module in self._modules.values()
            for g in module.globals
        ]
        return sorted(found, key=lambda r: r.address)

    def view(self, region: Region) -> memoryview | None:
        """Return None: the host cannot address a GPU's memory."""
        return None

    def read(self, region: Region, offset: int, target: memoryview) -> None:
        """Copy bytes of a region of the idle device into ``target``."""
        self._transfer(region.device).read(region.address + offset, target)

    def reader(self, region: Region) -> Callable[[int, memoryview], None]:
        """Return what copies bytes of a region of the idle device, in any thread."""
        transfer = self._transfer(region.device)  # made here: it needs the context

        def read(offset: int, target: memoryview) -> None:
            transfer.read(region.address + offset, target)

        return read

    def write(self, region: Region, offset: int, data: memoryview) -> None:
        """Copy ``data`` into a region of the idle device."""
        self._transfer(region.device).write(region.address + offset, data)

    def _transfer(self, ordinal: int) -> Transfer:
        self._open(self._devices[ordinal])
        found = self._transfers[ordinal]
        found.prepare()
        return found

    # -- from process to process ---------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """Return the chunks in which something lives."""
        return [
            Piece(device.info.ordinal, *chunk)
            for device in self._devices
            for chunk in device.arena.chunks()
        ]

    def share(self, piece: Piece) -> int:
        """Return a descriptor of a chunk's memory."""
        arena = self._devices[piece.device].arena
        error, descriptor = arena.share(Chunk(piece.address, piece.size))
        if error:
            raise CheckpointError(
                f"the memory at {piece.address:#x} cannot be shared: {result_name(error)}"
            )
        return descriptor

    def adopt(self, memory: Sequence[SharedMemory], allocations: Sequence[OwnedRegion]) -> int:
        """Map shared memory where it was, with the allocations that live in it."""
        for device in self._devices:
            ordinal = device.info.ordinal
            owned = [a for a in allocations if a.device == ordinal]
            if not owned:
                continue
            parts = {
                Chunk(part.address, part.size): part.descriptor
                for part in memory
                if part.device == ordinal
            }
            with self.within(self._open(device)):
                error = device.arena.adopt([Block(a.address, a.size) for a in owned], parts)
            if error:
                return self.failed(error)
            for allocation in owned:
                self._contexts[allocation.context].memory.add(allocation.address)
        return 0

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads and give everything back; what a kernel still uses stays."""
        if not self._devices:
            return
        idle = self.wait(self.timeline.fence(), _CLOSE) and self._fault is None
        self._watchers.close()
        for transfer in self._transfers.values():
            transfer.close()
        self._transfers.clear()
        if idle:
            self._give_back()
        self._devices.clear()
        os.close(self._descriptor)
        os.close(self._blocked)

    def _give_back(self) -> None:
        for context in list(self._contexts.values()):
            with self.within(context):
                self._empty(context)
                for stream in context.all_streams():
                    self.staging.release(stream)
        for context in list(self._contexts.values()):
            if context is not context.device.primary:
                self.cuCtxDestroy(context.handle)
        self._bury()
        self._make_current(None)
        if self._staging is not None and self._contexts:
            with self.within(next(iter(self._contexts.values()))):
                self._staging.close()
                self.receiving.close()
        for device in self._devices:
            if device.primary is None:
                device.arena.close()
                continue
            with self.within(device.primary):
                device.arena.close()
            self.cuda.cuDevicePrimaryCtxRelease(device.info.ordinal)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(descriptor)
