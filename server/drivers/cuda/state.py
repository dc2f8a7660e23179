"""What all calls of the cuda device share: devices, contexts, look-up, faults."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outlast.cuda_types import CUresult
from outlast.errors import ConfigError, RestoreFailed
from outlast.server.drivers.arena import Arena
from outlast.server.drivers.base import Fault
from outlast.server.drivers.cuda.objects import (
    LEGACY,
    PER_THREAD,
    Context,
    Device,
    Event,
    Function,
    Module,
    Stream,
)
from outlast.server.drivers.cuda.properties import ARENA_SIZE, BASE, read_device
from outlast.server.drivers.cuda.receiving import Receiving
from outlast.server.drivers.cuda.staging import Staging
from outlast.server.drivers.cuda.timeline import AHEAD, PLAIN, Timeline
from outlast.server.drivers.cuda.transfer import Transfer
from outlast.server.drivers.cuda.watchers import Watchers
from outlast.server.drivers.placement import Chunk
from outlast.session.cuda import is_sticky

log = logging.getLogger(__name__)

#: Bytes that the first copies and fills move.
_WARM_UP = 4 << 20
_FIRST_MODULE = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 8 .b64 first;
.visible .entry nothing()
{
    ret;
}
\0"""


class DriverState:
    """Devices and tables of one worker.

    Parameters
    ----------
    cuda : Any, optional
        Module with the functions of `cuda.bindings.driver`; that one by default.
    base, arena_size
        Addresses of the first device's memory, and how many each device gets.
    """

    tag: int
    on_give_up: Callable[[int, int], None] | None

    def __init__(self, *, cuda: Any = None, base: int = BASE, arena_size: int = ARENA_SIZE) -> None:
        self.cuda = cuda = _bindings() if cuda is None else cuda
        self._launch_kernel = cuda.cuLaunchKernel
        self._fault: Fault | None = None
        #: Tag of the newest call that gave the device work.
        self._work_tag = 0
        self._contexts: dict[int, Context] = {}
        #: Contexts that go when their work is done: (ticket, context).
        self._dying: list[tuple[int, Context]] = []
        self._current: Context | None = None
        #: Streams by handle; the special ones are those of the current context.
        self._streams: dict[int, Stream] = {}
        self._events: dict[int, Event] = {}
        self._functions: dict[int, Function] = {}
        self._modules: dict[int, Module] = {}
        #: Modules that go when the work that may run their code is done: (ticket, module).
        self._leaving: list[tuple[int, Module]] = []
        #: Pairs of contexts that end when the work that may need them is done: (ticket, user,
        #: owner of the memory).
        self._parting: list[tuple[int, Context, Context]] = []
        self._next_event = 0
        self.timeline = Timeline(cuda, self.failed, self._all_contexts)
        self._watchers = Watchers(cuda)
        self._staging: Staging | None = None
        self._receiving: Receiving | None = None
        self._transfers: dict[int, Transfer] = {}
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._blocked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._devices = self._find_devices(base, arena_size)
            # CUDA puts a context's modules where this process has room when the context is
            # made: now it is laid out as in every other worker, later it is not.
            self._open(self._devices[0])
        except BaseException:
            os.close(self._descriptor)
            os.close(self._blocked)
            raise

    def _find_devices(self, base: int, arena_size: int) -> list[Device]:
        cuda = self.cuda
        error = cuda.cuInit(0)[0]
        if error:
            raise ConfigError(f"CUDA cannot be initialised: {result_name(int(error))}")
        error, count = cuda.cuDeviceGetCount()
        if error or not count:
            raise ConfigError("CUDA finds no device")
        found = []
        for ordinal in range(int(count)):
            info = read_device(cuda, ordinal, base=base, arena_size=arena_size, devices=int(count))
            # Before anything else can take its addresses; this needs no context.
            arena = Arena(
                cuda,
                ordinal,
                base=info.arena_base,
                size=arena_size,
                fences=_Fences(self),
                on_unmap=functools.partial(self._give_up, ordinal),
            )
            found.append(Device(info, arena))
        return found

    def _give_up(self, device: int, chunk: Chunk) -> None:
        if self.on_give_up is not None:
            self.on_give_up(device, chunk.address)

    # -- contexts ------------------------------------------------------------------------------

    def _open(self, device: Device) -> Context:
        """Return a device's primary context, made at its first use and kept to the end.

        Raises
        ------
        RestoreFailed
            The device gives no context.
        """
        if device.primary is None:
            error, raw = self.cuda.cuDevicePrimaryCtxRetain(device.info.ordinal)
            if error:
                self.failed(int(error))
                raise RestoreFailed(
                    f"device {device.info.ordinal} gives no context: {result_name(int(error))}"
                )
            device.primary = self._add_context(int(raw), device)
            ordinal = device.info.ordinal
            self._transfers[ordinal] = Transfer(self.cuda, device.primary.handle)
        return device.primary

    def _add_context(self, handle: int, device: Device) -> Context:
        """Enter a context that CUDA made, with what this driver needs in it."""
        context = Context(handle, device)
        raw = self.cuda.CUstream
        context.legacy = Stream(0, raw(0), context)
        context.per_thread = Stream(PER_THREAD, raw(PER_THREAD), context)
        self._contexts[handle] = context
        self.timeline.stock(context, PLAIN, AHEAD)
        self._watchers.prepare(context)
        with self.within(context):
            self._warm_up(context)
            self._claim_place()
        if self._staging is None:
            with self.within(context):
                self._staging = Staging(self.cuda, self.timeline.mark, self.timeline.finished)
                self._receiving = Receiving(self.cuda, self.timeline.finished)
        return context

    def _warm_up(self, context: Context) -> None:
        """Do once what CUDA prepares when it is first asked for.

        Else it would come to lie now before, now behind a program's modules, whose
        variables could then not be had where they were.
        """
        cuda = self.cuda
        error, memory = cuda.cuMemAlloc(_WARM_UP)
        if error:
            self.failed(int(error))
            return
        half = _WARM_UP // 2
        target = int(memory) + half
        for stream in (context.legacy.raw, context.per_thread.raw):
            for size in (64, half):
                cuda.cuMemsetD8Async(memory, 0, size, stream)
                cuda.cuMemsetD16Async(memory, 0, size // 2, stream)
                cuda.cuMemsetD32Async(memory, 0, size // 4, stream)
                cuda.cuMemcpyDtoDAsync(target, memory, size, stream)
        cuda.cuCtxSynchronize()
        cuda.cuMemFree(memory)

    def _claim_place(self) -> None:
        """Load a module that stays, in the current context.

        CUDA puts small variables one behind the other, in memory that the first module gets.
        Without this one that would come to lie where the streams and contexts that a program
        happens to make before leave room.
        """
        cuda = self.cuda
        error, module = cuda.cuModuleLoadData(_FIRST_MODULE)
        if not error:
            error, function = cuda.cuModuleGetFunction(module, b"nothing")
        if not error:
            error = cuda.cuFuncLoad(function)[0]
        if error:
            self.failed(int(error))

    def _all_contexts(self) -> list[Context]:
        """Return the contexts that may have work under way."""
        return [*self._contexts.values(), *(context for _, context in self._dying)]

    @contextmanager
    def within(self, context: Context) -> Iterator[None]:
        """Make a context current for a moment."""
        self.cuda.cuCtxPushCurrent(context.handle)
        try:
            yield
        finally:
            self.cuda.cuCtxPopCurrent()

    def _make_current(self, context: Context | None) -> int:
        error = self.cuda.cuCtxSetCurrent(context.handle if context is not None else 0)[0]
        if error:
            return self.failed(int(error))
        self._current = context
        for handle in LEGACY:
            if context is None:
                self._streams.pop(handle, None)
            else:
                self._streams[handle] = context.legacy
        if context is None:
            self._streams.pop(PER_THREAD, None)
        else:
            self._streams[PER_THREAD] = context.per_thread
        return 0

    def _device(self, ordinal: int) -> Device | None:
        return self._devices[ordinal] if 0 <= ordinal < len(self._devices) else None

    @property
    def staging(self) -> Staging:
        """The pinned memory that copies go through; there is a context."""
        assert self._staging is not None
        return self._staging

    @property
    def receiving(self) -> Receiving:
        """The pinned memory that the link reads into; there is a context."""
        assert self._receiving is not None
        return self._receiving

    def frame_memory(self, size: int) -> memoryview | None:
        """Return pinned memory for a frame, if there is some."""
        return self._receiving.take(size) if self._receiving is not None else None

    def wait(self, ticket: int, timeout: float) -> bool:
        """Block without the GIL until ``ticket`` is done; False after ``timeout`` seconds."""
        raise NotImplementedError

    # -- faults --------------------------------------------------------------------------------

    def failed(self, error: int) -> int:
        """Take in a result that is no success; return it.

        The device tells only that something before has failed. So the fault's tag is that of
        the newest call which had given it work by then: exact where each call is waited for.
        """
        if self._fault is None and is_sticky(error):
            reason = f"{result_name(error)}, noticed after call {self._work_tag}"
            self._fault = Fault(error, self._work_tag, reason)
            log.error("the context is poisoned: %s", reason, extra={"action": "poisoned"})
        return error

    def fault(self) -> Fault | None:
        """Return what poisoned the contexts, if anything has."""
        return self._fault


class _Fences:
    """The timeline as an arena sees it."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def fence(self) -> int:
        fence: int = self._state.timeline.fence()
        return fence

    def done(self, fence: int) -> bool:
        done: bool = self._state.timeline.done(fence)
        return done

    def wait(self, fence: int, timeout: float) -> bool:
        done: bool = self._state.wait(fence, timeout)
        return done

    def order_after(self, fence: int) -> None:
        self._state.timeline.order_after(fence)


def result_name(error: int) -> str:
    """Return the name of a ``CUresult`` value."""
    try:
        return CUresult(error).name
    except ValueError:
        return f"CUDA error {error}"


def _bindings() -> Any:
    """Return `cuda.bindings.driver`.

    Raises
    ------
    ConfigError
        It is not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ConfigError(f"the cuda device needs the package cuda-python: {error}") from error
    return driver
