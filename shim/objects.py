"""CUDA objects as the client knows them: enough to answer and check calls without the server."""

from __future__ import annotations

import ctypes
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outlast.cuda_types import CUdevice_attribute
from outlast.session.ids import primary_context
from outlast.session.link_inputs import LinkInput
from outlast.shim.linkage import Landing

#: Packs the values of one launch: record bytes up to the parameters, packer of the rest; and
#: the stream it goes to.
Plan = tuple[bytes, Callable[..., bytes], "Stream"]


_identities = itertools.count(1)


@dataclass(eq=False, slots=True)
class Device:
    """One device of the server."""

    ordinal: int
    name: bytes
    uuid: bytes
    total_memory: int  # bytes
    arena: range
    attributes: dict[int, int]
    #: What it can do with the memory of others, by their ordinals: attribute -> number.
    peers: dict[int, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Device:
        """Return the device that a row of the server's table describes."""
        return cls(
            ordinal=row["ordinal"],
            name=row["name"].encode(),
            uuid=_uuid_bytes(row["uuid"]),
            total_memory=row["total_memory"],
            arena=range(row["arena_base"], row["arena_base"] + row["arena_size"]),
            attributes={int(key): value for key, value in row["attributes"].items()},
            peers={
                int(other): {int(key): value for key, value in values.items()}
                for other, values in row.get("peers", {}).items()
            },
        )

    def limits(self, *attributes: CUdevice_attribute) -> tuple[int, ...]:
        """Return some attributes, 0 where the server did not send one."""
        return tuple(self.attributes.get(attribute, 0) for attribute in attributes)


@dataclass(eq=False, slots=True)
class Context:
    """A context; the primary one of a device exists always and is alive while retained."""

    handle: int
    device: Device
    flags: int = 0
    primary: bool = False
    alive: bool = True
    #: How often a primary context is retained.
    retains: int = 0
    #: Checked launches by their arguments; emptied whenever one of them might turn invalid.
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)
    #: The explicit streams behind handle 2 (per-thread default stream), by thread id.
    thread_streams: dict[int, Stream] = field(default_factory=dict)
    #: Contexts of other devices whose memory it may use.
    peers: set[Context] = field(default_factory=set)
    #: What was set of it, or is known: limits by number, and preferences by their names.
    limits: dict[int, int] = field(default_factory=dict)
    preferences: dict[str, int] = field(default_factory=dict)
    #: Unlike that of every other context, and of this one before a reset.
    identity: int = field(default_factory=lambda: next(_identities))
    #: Its legacy default stream.
    legacy: Stream = field(init=False)
    #: Its calls up to this seq are known to be done.
    done: int = 0

    def __post_init__(self) -> None:
        self.legacy = Stream(0, self)

    def renew(self) -> None:
        """Forget what was set: all that it had is gone, and it begins anew."""
        self.limits.clear()
        self.preferences.clear()
        self.identity = next(_identities)

    @classmethod
    def primary_of(cls, device: Device) -> Context:
        """Return a device's primary context, not yet retained."""
        return cls(primary_context(device.ordinal), device, primary=True, alive=False)


@dataclass(eq=False, slots=True)
class Stream:
    """A stream; handle 0 is a context's legacy default stream."""

    handle: int
    context: Context
    flags: int = 0
    priority: int = 0
    #: Attributes that were set, by number.
    attributes: dict[int, object] = field(default_factory=dict)
    #: Seq of its newest call.
    last: int = 0
    #: Its calls up to this seq are known to be done.
    done: int = 0
    #: Its work when the program last asked whether that is done.
    place: Place | None = None
    #: Operations so far, how many are known to be done, and at how many `Credits` has to look.
    taken: int = 0
    finished: int = 0
    look_at: int = 0
    #: Ends that were asked for: operations by then, and what announces the end.
    marks: deque[tuple[int, Landing]] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class Place:
    """The work of a stream up to a call, for which the program may ask whether it is done."""

    stream: Stream
    seq: int
    #: Announces its end.
    watch: Landing | None = None
    #: What the program had been told when it was known not to be done (see `Progress`).
    told: int = -1


@dataclass(eq=False, slots=True)
class Event:
    """An event."""

    handle: int
    context: Context
    flags: int = 0
    recorded: bool = False
    #: Its latest record by this process; what was recorded before is done.
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel as the load reply describes it."""

    name: str
    #: (offset, size) of each parameter in the parameter buffer.
    parameters: tuple[tuple[int, int], ...]
    attributes: dict[int, int]


@dataclass(eq=False, slots=True)
class Module:
    """A loaded module with everything that can be looked up in it."""

    handle: int
    context: Context
    kernels: dict[str, KernelInfo]
    #: Name -> (address, size).
    globals: dict[str, tuple[int, int]]
    #: Functions looked up so far: CUDA returns the same handle each time.
    functions: dict[str, Function] = field(default_factory=dict)
    #: The library that it was made from, if any.
    origin: Library | None = None


@dataclass(eq=False, slots=True)
class Function:
    """A kernel that the program has looked up."""

    handle: int
    context: Context
    module: Module
    info: KernelInfo
    #: ``CUfunction_attribute`` value -> number; changes with cuFuncSetAttribute.
    attributes: dict[int, int]
    #: Answers so far, by block size, shared memory and flags.
    occupancy: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def parameter_bytes(self) -> int:
        """Length of the parameter buffer."""
        return max((offset + size for offset, size in self.info.parameters), default=0)


@dataclass(eq=False, slots=True)
class Library:
    """An image that is loaded in each context where something of it is needed."""

    handle: int
    #: What its modules have, by name.
    infos: dict[str, KernelInfo]
    #: Kernels looked up so far.
    kernels: dict[str, Kernel] = field(default_factory=dict)
    modules: dict[Context, Module] = field(default_factory=dict)
    #: One thread at a time loads it.
    loading: threading.Lock = field(default_factory=threading.Lock)
    #: It belongs to none.
    context: None = None


@dataclass(eq=False, slots=True)
class Kernel:
    """A kernel of a library: a function in every context."""

    handle: int
    #: Its library.
    origin: Library
    info: KernelInfo
    #: Attributes that were set, by device.
    settings: dict[Device, dict[int, int]] = field(default_factory=dict)
    #: It belongs to none.
    context: None = None


@dataclass(eq=False, slots=True)
class LinkState:
    """A link: what was added, and then the image with a zero behind it."""

    handle: int
    context: Context
    inputs: list[LinkInput] = field(default_factory=list)
    image: ctypes.Array[ctypes.c_char] | None = None


def _uuid_bytes(text: str) -> bytes:
    try:
        return uuid.UUID(text.removeprefix("GPU-").removeprefix("MIG-")).bytes
    except ValueError:
        # Not every device has an NVIDIA-style id; programs only need a stable distinct one.
        return uuid.uuid5(uuid.NAMESPACE_OID, text).bytes
