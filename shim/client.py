"""State of one initialised CUDA client: its link, its tables, its threads' contexts.

Changes of a table and the one-way record that goes with them happen under `Client.lock`,
so that the log's order is the tables' order. Nothing waits for the server under it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from outlast.cuda_types import CUresult, CUstream_flags
from outlast.session.ids import primary_context
from outlast.session.operations import Op
from outlast.shim.adoption import adopt
from outlast.shim.allocations import AllocationTable
from outlast.shim.credits import Credits
from outlast.shim.failure import CallFailure, check
from outlast.shim.handles import as_int
from outlast.shim.host_functions import HostFunctions
from outlast.shim.landings import Landings
from outlast.shim.linkage import Link
from outlast.shim.objects import (
    Context,
    Device,
    Event,
    Function,
    Kernel,
    Library,
    LinkState,
    Module,
    Stream,
)
from outlast.shim.pinned import PinnedTable
from outlast.shim.pools import PoolTable
from outlast.shim.progress import Progress
from outlast.shim.tables import HandleTable
from outlast.shim.thread_state import ThreadState

#: Special stream handles: the legacy default stream and the calling thread's own.
LEGACY_STREAMS = (0, 1)
PER_THREAD_STREAM = 2


class Client:
    """Everything the API functions work on."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.lock = threading.RLock()
        self.thread = ThreadState(link)
        self.devices = [Device.from_row(row) for row in link.devices]
        self.contexts = {
            context.handle: context for context in map(Context.primary_of, self.devices)
        }
        self.modules: HandleTable[Module] = HandleTable()
        self.functions: HandleTable[Function] = HandleTable()
        self.libraries: HandleTable[Library] = HandleTable()
        self.kernels: HandleTable[Kernel] = HandleTable()
        self.links: HandleTable[LinkState] = HandleTable()
        self.streams: HandleTable[Stream] = HandleTable()
        self.events: HandleTable[Event] = HandleTable()
        self.allocations = AllocationTable()
        self.pinned = PinnedTable()
        self.pools = PoolTable(self.devices)
        self.progress = Progress(link, self.lock)
        self.host_functions = HostFunctions(link, self.thread.forbid)
        self.credits = Credits(link, link.stream_credits, self.host_functions)
        self.landings = Landings(self.progress.tell)
        adopt(self, link.inventory)
        #: Every launch waits, so that a kernel's error comes from its own launch.
        self.launch_blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"

    # -- where a call stands -----------------------------------------------------------

    def device(self, ordinal: Any) -> Device:
        """Return a device by ordinal, else INVALID_DEVICE."""
        number = as_int(ordinal)
        if not 0 <= number < len(self.devices):
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_DEVICE)
        return self.devices[number]

    def context(self) -> Context:
        """Return the calling thread's context, for a call that the client answers itself."""
        context = self.thread.top
        if context is None:
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        if not context.alive:
            raise CallFailure(CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return context

    def enter(self) -> Context:
        """Return the calling thread's context, for a call that travels."""
        check(self.link.sticky())
        return self.context()

    def named_context(self, handle: Any) -> Context:
        """Return a live context by handle, else INVALID_CONTEXT."""
        context = self.contexts.get(as_int(handle))
        if context is None or not context.alive:
            raise CallFailure(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        return context

    def primary(self, ordinal: Any) -> Context:
        """Return the primary context of a device, retained or not."""
        return self.contexts[primary_context(self.device(ordinal).ordinal)]

    # -- streams -----------------------------------------------------------------------

    def stream(self, handle: Any, context: Context) -> Stream:
        """Return a stream by handle; the special ones are those of ``context``."""
        number = as_int(handle)
        if number in LEGACY_STREAMS:
            return context.legacy
        if number == PER_THREAD_STREAM:
            return self._thread_stream(context)
        return self.streams.get(number)

    def _thread_stream(self, context: Context) -> Stream:
        thread = threading.get_ident()
        with self.lock:
            stream = context.thread_streams.get(thread)
            if stream is None:
                # Not in the table: the program has no handle of it and cannot destroy it.
                stream = Stream(self.link.new_handle(), context)
                self.link.send(Op.STREAM_CREATE, stream.handle, 0, 0)
                context.thread_streams[thread] = stream
            return stream

    def make_room(self, handle: Any, context: Context) -> Stream:
        """Return a stream that has room for another operation; wait if it has too many.

        Not under the lock: what lets the stream go on may be another thread's call.
        """
        stream = self.stream(handle, context)
        if stream.taken >= stream.look_at:
            self.credits.take(stream)
        return stream

    def newest(self, stream: Stream) -> int:
        """Return the newest call that a wait for a stream waits for."""
        if stream.handle:
            return stream.last
        context = stream.context
        own = [context.legacy, *context.thread_streams.values(), *self.streams.of(context)]
        apart = CUstream_flags.CU_STREAM_NON_BLOCKING
        return max(other.last for other in own if not other.flags & apart)

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream's work so far."""
        self.host_functions.wait_before(stream)
        newest, taken = self.newest(stream), stream.taken
        result = self.link.query(Op.STREAM_SYNC, stream.handle).result
        if not result:
            stream.done = max(stream.done, newest)
            stream.finished = max(stream.finished, taken)
        self.waited(stream.context, result)

    # -- ends --------------------------------------------------------------------------

    def waited(self, context: Context, result: int) -> None:
        """End a call that waited: its own error, else a late one of its context, once."""
        check(result)
        self.progress.tell()
        self.report_late(context)

    def report_late(self, context: Context) -> None:
        """Fail the call with a late error of its context, once, if there is any."""
        check(self.link.take_deferred(context.handle))
        if self.landings:
            check(self.landings.take_error(context))

    def drop_objects(self, context: Context) -> None:
        """Forget everything that a context owns."""
        for table in (self.modules, self.functions, self.links, self.streams, self.events):
            table.drop_context(context)
        for library in self.libraries:
            library.modules.pop(context, None)
        self.allocations.drop_context(context)
        self.pinned.drop_context(context)
        context.plans.clear()
        context.thread_streams.clear()
        context.renew()
        context.peers.clear()
        for other in self.contexts.values():
            other.peers.discard(context)

    def retire(self) -> None:
        """Make everything made by this client invalid."""
        with self.lock:
            for context in self.contexts.values():
                context.alive = False
                context.plans.clear()

    def in_arena(self, address: int) -> bool:
        """Return whether an address is device memory, which the host cannot touch."""
        return any(address in device.arena for device in self.devices)
