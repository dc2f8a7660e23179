"""What the handles of one worker stand for: devices, contexts, streams, events, functions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from outlast.server.drivers.arena import Arena
from outlast.server.drivers.base import DeviceInfo, FunctionInfo, GlobalInfo

INVALID_VALUE = 1
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
PEER_ACCESS_UNSUPPORTED = 217
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED = 704, 705
OUT_OF_MEMORY = 2

#: Special streams: the legacy one by either name, and the one of the calling thread.
LEGACY = (0, 1)
PER_THREAD = 2


@dataclass(slots=True, eq=False)
class Device:
    """One GPU."""

    info: DeviceInfo
    arena: Arena
    #: The primary context; the driver itself holds one retain, so it stays to the end.
    primary: Context | None = None
    #: Retains of the client.
    retains: int = 0


@dataclass(slots=True, eq=False)
class Context:
    """A context, its streams and its unused events."""

    handle: int
    device: Device
    #: False once it is destroyed, and its events with it: its work is over.
    alive: bool = True
    legacy: Stream = field(init=False)
    per_thread: Stream = field(init=False)
    streams: dict[int, Stream] = field(default_factory=dict)
    events: set[int] = field(default_factory=set)
    modules: set[int] = field(default_factory=set)
    #: Contexts of other devices whose memory it may use.
    peers: set[Context] = field(default_factory=set)
    #: Addresses of its memory.
    memory: set[int] = field(default_factory=set)
    #: Limits as they were before they were set.
    limits: dict[int, int] = field(default_factory=dict)
    #: Unused events by their flags.
    spare: dict[int, list[Any]] = field(default_factory=dict)
    #: Marks of streams that were destroyed with work under way.
    orphans: list[Mark] = field(default_factory=list)

    def all_streams(self) -> list[Stream]:
        """Return its streams, the special ones too."""
        return [self.legacy, self.per_thread, *self.streams.values()]


@dataclass(slots=True, eq=False)
class Stream:
    """A stream, and how far what is known of it reaches."""

    handle: int
    #: `CUstream`, so that no call has to make one.
    raw: Any
    context: Context
    #: Ordered with the legacy stream (or that stream itself).
    blocking: bool = True
    #: Work was issued behind the latest mark.
    dirty: bool = False
    #: Latest mark; None once its end has been seen.
    mark: Mark | None = None
    #: The timeline's epoch when work was last issued here.
    epoch: int = -1
    #: Gates up to this number are waited for.
    gates: int = 0
    #: Copies into staging memory that go on to their targets: (mark number, source, target).
    landings: deque[tuple[int, memoryview, memoryview]] = field(default_factory=deque)
    #: Staging memory that small copies of this stream share.
    chunk: Any = None


class Mark:
    """A place in a stream: a real event, recorded once, that nobody else uses meanwhile."""

    __slots__ = ("done", "number", "raw", "spare", "stream")

    def __init__(self, raw: Any, spare: list[Any], stream: Stream, number: int) -> None:
        self.raw = raw
        self.spare = spare
        self.stream = stream
        self.number = number
        self.done = False

    def __del__(self) -> None:
        # A wait that was enqueued stands, whatever happens to the event later.
        self.spare.append(self.raw)


@dataclass(slots=True, eq=False)
class Event:
    """A client's event: a name for the latest of several marks."""

    handle: int
    context: Context
    flags: int
    mark: Mark | None = None


@dataclass(slots=True, eq=False)
class Function:
    """A kernel, with the buffer that its parameters are launched from."""

    raw: Any
    info: FunctionInfo
    size: int  # bytes of parameters
    #: The buffer, and the address of the array of pointers into it (0: no parameters).
    buffer: memoryview
    pointers: int
    #: Keeps the two alive.
    owner: Any


@dataclass(slots=True, eq=False)
class Module:
    """A loaded image."""

    raw: Any
    context: Context
    functions: list[int]
    infos: tuple[FunctionInfo, ...]
    globals: tuple[GlobalInfo, ...]
