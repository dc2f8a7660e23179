"""Calls about devices and contexts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.cuda_types import ERROR_TEXTS, CUresult
from outlast.server.drivers.emulated.objects import Context, LoadedModule
from outlast.server.drivers.emulated.peers import PeerCalls
from outlast.server.drivers.emulated.properties import DRIVER_VERSION, LIMITS
from outlast.server.drivers.emulated.results import (
    INVALID_CONTEXT,
    INVALID_VALUE,
    UNSUPPORTED_LIMIT,
    Refusal,
    cuda_call,
    number,
)
from outlast.server.drivers.emulated.state import DriverState


@dataclass(frozen=True, slots=True)
class Uuid:
    """A device's identity, as `cuda.bindings.driver.CUuuid` shows it."""

    bytes: bytes


class DeviceCalls(DriverState):
    """Initialisation, devices and error texts."""

    @cuda_call(always=True)
    def cuInit(self, Flags: int = 0) -> None:
        """Initialise CUDA."""
        if number(Flags):
            raise Refusal(INVALID_VALUE)

    @cuda_call(1, always=True)
    def cuDriverGetVersion(self) -> int:
        """Return the CUDA version."""
        return DRIVER_VERSION

    @cuda_call(1, always=True)
    def cuDeviceGetCount(self) -> int:
        """Return the number of devices."""
        return len(self._devices)

    @cuda_call(1, always=True)
    def cuDeviceGet(self, ordinal: Any) -> int:
        """Return a device by number."""
        return self._device(ordinal).info.ordinal

    @cuda_call(1, always=True)
    def cuDeviceGetName(self, length: Any, dev: Any) -> bytes:
        """Return a device's name."""
        return self._device(dev).info.name.encode()[: max(number(length) - 1, 0)]

    @cuda_call(1, always=True)
    def cuDeviceGetUuid(self, dev: Any) -> Uuid:
        """Return a device's UUID."""
        return Uuid(self._device(dev).uuid)

    @cuda_call(1, always=True)
    def cuDeviceTotalMem(self, dev: Any) -> int:
        """Return the size of a device's memory."""
        return self._device(dev).info.total_memory

    @cuda_call(1, always=True)
    def cuDeviceGetAttribute(self, attrib: Any, dev: Any) -> int:
        """Return one attribute of a device."""
        value = self._device(dev).info.attributes.get(number(attrib))
        if value is None:
            raise Refusal(INVALID_VALUE)
        return value

    @cuda_call(1, always=True)
    def cuGetErrorName(self, error: Any) -> bytes:
        """Return the name of a result."""
        return _result(error).name.encode()

    @cuda_call(1, always=True)
    def cuGetErrorString(self, error: Any) -> bytes:
        """Return what a result means."""
        return ERROR_TEXTS[_result(error)].encode()


def _result(error: Any) -> CUresult:
    try:
        return CUresult(number(error))
    except ValueError as unknown:
        raise Refusal(INVALID_VALUE) from unknown


class ContextCalls(PeerCalls):
    """Primary and other contexts."""

    @cuda_call(1, always=True)
    def cuDevicePrimaryCtxRetain(self, dev: Any) -> int:
        """Retain a device's primary context."""
        device = self._device(dev)
        with self.engine.lock:
            device.primary_retains += 1
            device.primary.alive = True
        return device.primary.handle

    @cuda_call(always=True)
    def cuDevicePrimaryCtxRelease(self, dev: Any) -> None:
        """Give a retain back; the last one destroys what the context owns."""
        device = self._device(dev)
        with self.engine.lock:
            if not device.primary_retains:
                raise Refusal(INVALID_CONTEXT)
            device.primary_retains -= 1
            if not device.primary_retains:
                self._empty(device.primary)
                device.primary.alive = False

    @cuda_call(always=True)
    def cuDevicePrimaryCtxReset(self, dev: Any) -> None:
        """Destroy what the primary context owns, and forget a fault."""
        device = self._device(dev)
        with self.engine.lock:
            # What is under way goes on in memory that stays until then.
            self._empty(device.primary)
            if self.fault_code():
                self.engine.finish(self.engine.issued)
                self.engine.clear_fault()
                self._logged_fault = ""

    @cuda_call(2, always=True)
    def cuDevicePrimaryCtxGetState(self, dev: Any) -> tuple[int, int]:
        """Return flags and whether the primary context is active."""
        device = self._device(dev)
        return device.primary.flags, int(device.primary.alive)

    @cuda_call(always=True)
    def cuDevicePrimaryCtxSetFlags(self, dev: Any, flags: Any) -> None:
        """Set the primary context's flags."""
        self._device(dev).primary.flags = number(flags)

    @cuda_call(1)
    def cuCtxCreate(self, ctxCreateParams: Any, flags: Any, dev: Any) -> int:
        """Create a context and make it current."""
        device = self._device(dev)
        context = Context(self._contexts.new(), device, number(flags))
        self._contexts.put(context.handle, context)
        self._push(context)
        return context.handle

    @cuda_call()
    def cuCtxDestroy(self, ctx: Any) -> None:
        """Destroy a context and what it owns."""
        context = self._named(ctx)
        if context is None or context is context.device.primary:
            raise Refusal(INVALID_CONTEXT)
        with self.engine.lock:
            self._empty(context)
            context.alive = False
            self._contexts.drop(context.handle)
        if self._current.context is context:
            self._pop()

    @cuda_call(always=True)
    def cuCtxSetCurrent(self, ctx: Any) -> None:
        """Make a context current for the calling thread; 0 for none."""
        context = self._named(ctx)
        if context is not None:
            self._current.context = context
        elif self._current.context is not None:
            self._pop()

    @cuda_call(1, always=True)
    def cuCtxGetCurrent(self) -> int:
        """Return the calling thread's context; 0 if it has none."""
        context = self._current.context
        return context.handle if context is not None else 0

    @cuda_call(always=True)
    def cuCtxPushCurrent(self, ctx: Any) -> None:
        """Make a context current, keeping the former below it."""
        context = self._named(ctx)
        if context is None:
            raise Refusal(INVALID_CONTEXT)
        self._push(context)

    @cuda_call(1, always=True)
    def cuCtxPopCurrent(self) -> int:
        """Take the current context off; the one below it becomes current."""
        context = self._current.context
        if context is None:
            raise Refusal(INVALID_CONTEXT)
        self._pop()
        return context.handle

    @cuda_call(1, always=True)
    def cuCtxGetDevice(self) -> int:
        """Return the current context's device."""
        return self._context().device.info.ordinal

    @cuda_call(1, always=True)
    def cuCtxGetFlags(self) -> int:
        """Return the current context's flags."""
        return self._context().flags

    @cuda_call(1)
    def cuCtxGetLimit(self, limit: Any) -> int:
        """Return a limit of the current context."""
        value = self._context().limits.get(number(limit))
        if value is None:
            raise Refusal(UNSUPPORTED_LIMIT)
        return value

    @cuda_call()
    def cuCtxSetLimit(self, limit: Any, value: Any) -> None:
        """Set a limit of the current context: kernels of this device have what they need anyway."""
        limits, named = self._context().limits, number(limit)
        if named not in limits:
            raise Refusal(UNSUPPORTED_LIMIT)
        if number(value) < 0:
            raise Refusal(INVALID_VALUE)
        limits[named] = number(value)

    @cuda_call()
    def cuCtxSynchronize(self) -> None:
        """Wait for all work of the device."""
        self._context()
        self._finish(self.engine.issued)

    def _named(self, handle: Any) -> Context | None:
        """Return the context that a handle names; None for 0."""
        found = number(handle)
        if not found:
            return None
        context = self._contexts.get(found)
        if context is None or not context.alive:
            raise Refusal(INVALID_CONTEXT)
        return context

    def _push(self, context: Context) -> None:
        self._current.below.append(self._current.context)
        self._current.context = context

    def _pop(self) -> None:
        below = self._current.below
        self._current.context = below.pop() if below else None

    def _empty(self, context: Context) -> None:
        """Destroy everything that a context owns."""
        context.limits = dict(LIMITS)
        self._leave_peers(context)
        for module in [m for m in self._modules if m.context is context]:
            self._drop_module(module)
        for stream in [s for s in self._streams if s.context is context]:
            self._streams.drop(stream.handle)
        for event in [e for e in self._events if e.context is context]:
            self.engine.keep(event)
            self._events.drop(event.handle)
        arena = context.device.arena
        for block in arena.allocations():
            if block.context == context.handle:
                arena.release(block.address)

    def _drop_module(self, module: LoadedModule) -> None:
        """Forget a module, its functions and its variables."""
        arena = module.context.device.arena
        for function in module.functions.values():
            # Launches that are queued still run its code.
            self.engine.keep(function.code)
            self._functions.drop(function.handle)
        for address, _ in module.globals.values():
            arena.release(address)
        self._modules.drop(module.handle)
