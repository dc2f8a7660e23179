"""What all driver calls share: devices, handle tables, the current context, faults."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections import deque
from typing import Any

from outlast.errors import ConfigError
from outlast.server.drivers.base import DeviceInfo, Fault
from outlast.server.drivers.emulated import arena as arenas
from outlast.server.drivers.emulated.engine import DEINITIALIZED, Engine
from outlast.server.drivers.emulated.engine_layout import CONTROL
from outlast.server.drivers.emulated.jit import Jit
from outlast.server.drivers.emulated.objects import (
    Context,
    Currency,
    Device,
    Event,
    Function,
    HandleTable,
    LoadedModule,
    Stream,
)
from outlast.server.drivers.emulated.printing import format_output
from outlast.server.drivers.emulated.properties import (
    NAME,
    device_attributes,
    device_peers,
    device_uuid,
    uuid_text,
)
from outlast.server.drivers.emulated.results import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    Refusal,
    number,
)
from outlast.server.drivers.emulated.vmm import Memories, Physical, Reservation

logger = logging.getLogger(__name__)

DEFAULT_MEMORY = 4 << 30  # bytes
FAULT = CONTROL["fault"]
_RUNNING_TAG = CONTROL["running_tag"]
_MAX_OUTPUT = 1 << 20  # characters of device printf kept until somebody takes them

_FAULT_TEXTS = {
    DEINITIALIZED: "the device was closed",
    46: "the device is gone",
    214: "an uncorrectable ECC error",
    700: "illegal memory access",
    702: "the kernel ran longer than the watchdog allows",
    710: "a device assertion failed",
    714: "the stack of calls is full",
    716: "misaligned address",
    718: "a call of an address at which no function is",
    719: "the kernel executed a trap",
}
#: A timeout with a place in the PTX was found, not waited for.
_DEADLOCK = "threads of a block wait for each other for ever at a barrier or warp operation"


class DriverState:
    """Devices and tables of one emulated driver."""

    tag: int

    def __init__(
        self,
        *,
        devices: int = 1,
        memory: int | None = None,
        base: int = arenas.BASE,
        arena_size: int = arenas.ARENA_SIZE,
        watchdog_s: float | None = None,
        capture_output: bool = False,
        jit: Jit | None = None,
    ) -> None:
        if not 1 <= devices <= 16:
            raise ConfigError(f"there can be 1 to 16 devices, not {devices}")
        total = memory_size() if memory is None else memory
        self.jit = jit or Jit()
        self.engine = Engine(self.jit, watchdog_s=watchdog_s)
        self._words = self.engine.words
        self._contexts: HandleTable[Context] = HandleTable(0x1_0000)
        self._streams: HandleTable[Stream] = HandleTable(0x100_0000)
        self._events: HandleTable[Event] = HandleTable(0x200_0000)
        self._modules: HandleTable[LoadedModule] = HandleTable(0x300_0000)
        self._functions: HandleTable[Function] = HandleTable(0x400_0000)
        self._memories: HandleTable[Physical] = HandleTable(0x500_0000)
        self._files = Memories()
        self._reservations: dict[int, Reservation] = {}
        self._kernel_names: list[str] = []
        self._logged_fault = ""
        self._compiling = threading.Lock()
        self._current = Currency()
        self._capture_output = capture_output
        self._output: deque[tuple[int, str]] = deque()
        self._output_size = 0
        self._printf = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)(
            self._print
        )
        self._devices: list[Device] = []
        try:
            span = range(base, base + devices * arena_size)
            for ordinal in range(devices):
                self._devices.append(self._make_device(ordinal, span, arena_size, total))
        except BaseException:
            self._release()
            raise

    def _make_device(self, ordinal: int, span: range, size: int, total: int) -> Device:
        base = span.start + ordinal * size
        arena = arenas.Arena(self.engine, base=base, size=size, total=total, span=span)
        arena.set_printf(ctypes.cast(self._printf, ctypes.c_void_p).value or 0)
        uuid = device_uuid(ordinal)
        attributes = device_attributes(ordinal)
        peers = device_peers(ordinal, len(span) // size)
        info = DeviceInfo(
            ordinal, NAME, uuid_text(uuid), total, base, size, attributes, peers=peers
        )
        device = Device(info, uuid, arena)
        device.primary = Context(self._contexts.new(), device, alive=False)
        self._contexts.put(device.primary.handle, device.primary)
        return device

    def _release(self) -> bool:
        """End the engine and give the memory back, once."""
        ended = self.engine.close()
        if ended:
            self._files.close()
            while self._devices:
                self._devices.pop().arena.close()
        return ended

    # -- looking up ----------------------------------------------------------

    def _device(self, ordinal: Any) -> Device:
        index = number(ordinal)
        if not 0 <= index < len(self._devices):
            raise Refusal(INVALID_DEVICE)
        return self._devices[index]

    def _context(self) -> Context:
        """Return the calling thread's context."""
        context = self._current.context
        if context is None:
            raise Refusal(INVALID_CONTEXT)
        if not context.alive:
            raise Refusal(CONTEXT_IS_DESTROYED)
        return context

    def _stream(self, handle: Any) -> Stream:
        found = number(handle)
        if found > 2:
            stream = self._streams.get(found)
            if stream is None:
                raise Refusal(INVALID_HANDLE)
            return stream
        context = self._context()
        return context.per_thread if found == 2 else context.legacy

    def _event(self, handle: Any) -> Event:
        event = self._events.get(number(handle))
        if event is None:
            raise Refusal(INVALID_HANDLE)
        return event

    # -- faults and waiting --------------------------------------------------

    def fault_code(self) -> int:
        """Return the result that poisoned the contexts; 0 if none."""
        return self._words[FAULT]

    def fault(self) -> Fault | None:
        """Return what poisoned the contexts."""
        words = self.engine.fault_words()
        if words is None:
            return None
        code, tag, kernel, address, line = words
        reason = _FAULT_TEXTS.get(code, f"error {code}")
        if code == 702 and line:
            reason = _DEADLOCK
        if code in (700, 716):
            reason += f" at {address:#x}"
        if kernel < len(self._kernel_names):
            reason += f" in kernel {self._kernel_names[kernel]}"
        if line:
            reason += f", PTX line {line}"
        if reason != self._logged_fault and code != DEINITIALIZED:
            self._logged_fault = reason
            logger.error("The device has failed: %s.", reason, extra={"action": "device_fault"})
        return Fault(code, tag, reason)

    def _finish(self, ticket: int) -> None:
        """Block until a ticket is done; refuse with the fault if one ended it."""
        self.engine.finish(ticket)
        self._flush_output()
        fault = self.fault()
        if fault is not None:
            raise Refusal(fault.result)

    # -- printf --------------------------------------------------------------

    def take_output(self) -> list[tuple[int, str]]:
        """Return what kernels have printed since the last call, with their launches' tags."""
        taken = []
        while self._output:
            taken.append(self._output.popleft())
        self._output_size = 0
        return taken

    def _flush_output(self) -> None:
        """Print to standard output what kernels have printed, as CUDA does when it waits."""
        if self._output and not self._capture_output:
            for _, text in self.take_output():
                sys.stdout.write(text)
            sys.stdout.flush()

    def _print(self, text: int, values: int) -> int:
        """Take one printf of a kernel; runs on the engine's thread."""
        printed = format_output(self._read_device, text, values)
        if self._output_size + len(printed) > _MAX_OUTPUT:
            return -1
        self._output_size += len(printed)
        self._output.append((self._words[_RUNNING_TAG], printed))
        return len(printed)

    def _read_device(self, address: int, size: int) -> bytes:
        """Return up to ``size`` bytes of device memory."""
        for device in self._devices:
            readable = device.arena.readable(address, size)
            if readable:
                return ctypes.string_at(address, readable)
        return b""


def memory_size() -> int:
    """Return the size of device memory: ``LUPINE_EMULATED_MEMORY`` bytes or 4 GiB.

    Raises
    ------
    ConfigError
        The variable is no positive number.
    """
    text = os.environ.get("LUPINE_EMULATED_MEMORY", "")
    if not text:
        return DEFAULT_MEMORY
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigError(f"LUPINE_EMULATED_MEMORY must be a number of bytes, not {text!r}")
    return int(text)
