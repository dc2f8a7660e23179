"""What handles name: contexts, streams, events, modules and functions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outlast.cuda_types import CUevent_flags
from outlast.server.drivers.base import DeviceInfo, ParameterInfo
from outlast.server.drivers.emulated.arena import Arena
from outlast.server.drivers.emulated.jit import NativeCode
from outlast.server.drivers.emulated.lower.kernel import LoweredKernel
from outlast.server.drivers.emulated.lower.layout import Layout
from outlast.server.drivers.emulated.properties import LIMITS

T = TypeVar("T")


class HandleTable(Generic[T]):
    """Handles of one kind. The number of a destroyed object is the next one given out."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._unused: list[int] = []
        self._objects: dict[int, T] = {}
        #: Look-up without a method call of our own.
        self.get = self._objects.get

    def new(self) -> int:
        """Return a handle that names nothing yet."""
        if self._unused:
            return self._unused.pop()
        self._next += 16
        return self._next

    def put(self, handle: int, item: T) -> None:
        """Let ``handle`` name an object."""
        self._objects[handle] = item

    def drop(self, handle: int) -> None:
        """Forget an object."""
        del self._objects[handle]
        self._unused.append(handle)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))


@dataclass(slots=True, eq=False)
class Device:
    """One emulated device."""

    info: DeviceInfo
    uuid: bytes
    arena: Arena
    primary: Context = field(init=False)
    primary_retains: int = 0


@dataclass(slots=True, eq=False)
class Stream:
    """Work in order. All streams share the engine, so a stream is the ticket of its last work."""

    handle: int
    context: Context
    flags: int = 0
    priority: int = 0
    ticket: int = 0
    #: Ordered with the legacy stream.
    blocking: bool = True

    def issued(self, ticket: int) -> None:
        """Note the newest work."""
        self.ticket = ticket
        if self.blocking:
            self.context.blocking_ticket = ticket


@dataclass(slots=True, eq=False)
class Context:
    """A context of a device; it owns what is made in it."""

    handle: int
    device: Device
    flags: int = 0
    alive: bool = True
    #: Contexts of other devices whose memory its kernels may use.
    peers: set[Context] = field(default_factory=set)
    limits: dict[int, int] = field(default_factory=lambda: dict(LIMITS))
    #: Newest work on the legacy stream and all that it is ordered with.
    blocking_ticket: int = 0
    legacy: Stream = field(init=False)
    per_thread: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.legacy = Stream(0, self)
        self.per_thread = Stream(2, self)

    def stream_ticket(self, stream: Stream) -> int:
        """Return the newest work that a wait for ``stream`` waits for."""
        return self.blocking_ticket if stream is self.legacy else stream.ticket


@dataclass(slots=True, eq=False)
class Event:
    """A mark in a stream, with the time at which it was passed."""

    handle: int
    context: Context
    flags: int = 0
    #: Ticket of the latest record; 0 if never recorded.
    ticket: int = 0
    stamp: ctypes.c_uint64 = field(default_factory=ctypes.c_uint64)
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.address = ctypes.addressof(self.stamp)

    @property
    def timed(self) -> bool:
        """Whether it may be asked for a time."""
        return not self.flags & CUevent_flags.CU_EVENT_DISABLE_TIMING


@dataclass(slots=True, eq=False)
class Function:
    """A kernel of a loaded module."""

    handle: int
    name: str
    #: Number that faults name it by; never used again.
    number: int
    module: LoadedModule
    layout: Layout
    lowered: LoweredKernel
    parameters: tuple[ParameterInfo, ...]
    attributes: dict[int, int]
    max_threads: int
    #: Bytes of dynamic shared memory that a launch may ask for.
    dynamic_limit: int
    shared_size: int
    parameter_size: int
    worker: int
    #: Address of the native code; 0 before the first launch.
    entry: int = 0
    code: NativeCode | None = None


@dataclass(slots=True, eq=False)
class LoadedModule:
    """A module in a context."""

    handle: int
    context: Context
    functions: dict[str, Function] = field(default_factory=dict)
    #: Name -> address and bytes, in order of declaration.
    globals: dict[str, tuple[int, int]] = field(default_factory=dict)


class Currency(threading.local):
    """A thread's current context and the stack below it."""

    context: Context | None = None

    def __init__(self) -> None:
        self.below: list[Context | None] = []
