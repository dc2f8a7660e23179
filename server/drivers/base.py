"""What a worker needs of a device: CUDA's own calls plus tickets for asynchronous waits.

A driver object has methods named and returning as `cuda.bindings.driver` has functions
(``(CUresult, ...)``), so that the executor calls both kinds of device alike. The methods
here are what CUDA does not have, or has only in a blocking form.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outlast.session.link_inputs import LinkInput

NOT_SUPPORTED = 801
#: Grid, block and dynamic shared memory of a launch.
Shape = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kernel or copy failed on the device after its call had returned."""

    #: ``CUresult`` value.
    result: int
    #: The `Driver.tag` that was set when the failing call was issued.
    tag: int
    #: Where and why, in one line.
    reason: str


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """Place of one kernel parameter in the parameter buffer."""

    offset: int  # bytes
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """What a client must know of a kernel to check and pack its launches."""

    name: str
    parameters: tuple[ParameterInfo, ...]
    #: ``CUfunction_attribute`` value -> number.
    attributes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GlobalInfo:
    """A module-scope variable in device memory."""

    name: str
    address: int
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """What a loaded image offers."""

    functions: tuple[FunctionInfo, ...]
    globals: tuple[GlobalInfo, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A range of device memory that belongs to a session's state."""

    device: int
    address: int
    size: int  # bytes
    #: ``alloc`` (cuMemAlloc) or ``global`` (module variable).
    kind: str = "alloc"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of bytes in memory."""

    count: int
    width: int  # bytes
    #: Bytes from one row's begin to the next one's.
    pitch: int

    @property
    def size(self) -> int:
        """Bytes in all of them."""
        return self.count * self.width

    @property
    def extent(self) -> int:
        """Bytes from the first row's begin to the last one's end."""
        return (self.count - 1) * self.pitch + self.width if self.count else 0

    @property
    def valid(self) -> bool:
        """Whether there are some, and none lies in another."""
        return self.count > 0 and self.width > 0 and (self.width <= self.pitch or self.count == 1)


class Piece(NamedTuple):
    """Device memory that can be shared as a whole."""

    device: int
    address: int
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Device memory that outlives its process while somebody holds the descriptor."""

    device: int
    address: int
    size: int  # bytes
    descriptor: int


@dataclass(frozen=True, slots=True)
class OwnedRegion:
    """An allocation and the context that owns it."""

    device: int
    address: int
    size: int  # bytes
    #: The context's real handle.
    context: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as the client sees it."""

    ordinal: int
    name: str
    uuid: str
    total_memory: int  # bytes
    arena_base: int
    arena_size: int  # bytes
    #: ``CUdevice_attribute`` value -> number.
    attributes: dict[int, int] = field(default_factory=dict)
    #: What it can do with the memory of others, by their ordinals: ``CUdevice_P2PAttribute``
    #: value -> number.
    peers: dict[int, dict[int, int]] = field(default_factory=dict)


class Driver(ABC):
    """A device driver inside one worker process."""

    #: Name used on the command line: ``cuda`` or ``emulated``.
    name: str
    #: Opaque number the executor sets before each call (the call's seq); faults name it.
    tag: int = 0

    #: Told of each `Piece` that is about to be given up, by device and address: as long as
    #: anybody has a descriptor of it, it is not free.
    on_give_up: Callable[[int, int], None] | None = None

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """Return every device."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a watched ticket is done or on a fault.

        The owner of the poll loop calls `drain` when it does.
        """

    def tidy(self) -> None:  # noqa: B027 # most devices have nothing to do
        """Give up what nothing uses any more; cheap, and asked for again and again."""

    @abstractmethod
    def drain(self) -> None:
        """Make `fileno` unreadable again."""

    @abstractmethod
    def ticket(self, stream: int | None = None) -> int:
        """Name all work enqueued so far (on ``stream``, a real handle; None: everywhere).

        Tickets grow in the order of issue. Those of one stream are done in that order;
        those of different streams in any. ``stream`` 0 and 1 are the legacy stream and
        include what it waits for.
        """

    @abstractmethod
    def event_ticket(self, event: int) -> int:
        """Name the latest record of ``event``; 0 (always done) if never recorded."""

    @abstractmethod
    def order_after(self, ticket: int) -> None:
        """Let what is enqueued from now on, in any stream, run behind ``ticket``'s work."""

    @abstractmethod
    def done(self, ticket: int) -> bool:
        """Return whether the work behind ``ticket`` has completed (or a fault ended it)."""

    @abstractmethod
    def order_all(self) -> None:
        """Let all that is issued from now on, on any stream, run behind all work so far."""

    @abstractmethod
    def watch(self, ticket: int) -> None:
        """Make `fileno` readable once ``ticket`` is done, besides those watched already."""

    @abstractmethod
    def wait_any(self, tickets: Sequence[int], timeout: float) -> bool:
        """Block (without the GIL) until one of ``tickets`` is done; False after ``timeout``."""

    @abstractmethod
    def wait(self, ticket: int, timeout: float) -> bool:
        """Block (without the GIL) until ``ticket`` is done; False after ``timeout`` seconds."""

    @abstractmethod
    def fault(self) -> Fault | None:
        """Return the fault that poisoned the current process's contexts, if any."""

    @abstractmethod
    def enqueue_read(self, address: int, size: int, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of device bytes into a fresh host buffer.

        Returns
        -------
        tuple[int, memoryview]
            A ``CUresult`` value and the buffer, valid once a `ticket` taken now is done.
        """

    def frame_memory(self, size: int) -> memoryview | None:
        """Return memory from which `enqueue_write` is cheapest, for a frame of ``size`` bytes.

        Any thread may ask. None: there is none better than any other.
        """
        return None

    @abstractmethod
    def enqueue_write(self, address: int, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of ``data`` to the device; the driver keeps it alive. Returns CUresult.

        Ordered before everything enqueued later on any stream.
        """

    @abstractmethod
    def fill_rows(
        self, address: int, rows: Rows, columns: int, value: int, width: int, stream: int
    ) -> int:
        """Enqueue a fill of ``columns`` elements of each row. Returns a ``CUresult`` value."""

    @abstractmethod
    def write_rows(self, address: int, rows: Rows, data: bytes | memoryview, stream: int) -> int:
        """Enqueue a copy of dense ``data`` (at most 1 MiB) to rows, as `enqueue_write` does."""

    @abstractmethod
    def read_rows(self, address: int, rows: Rows, stream: int) -> tuple[int, memoryview]:
        """Enqueue a copy of rows (at most 1 MiB) into a dense buffer, as `enqueue_read` does."""

    @abstractmethod
    def copy_rows(self, target: int, to: Rows, source: int, rows: Rows, stream: int) -> int:
        """Enqueue a copy between device addresses. Returns a ``CUresult`` value."""

    @abstractmethod
    def launch_packed(
        self,
        function: int,
        stream: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        parameters: bytes | memoryview,
    ) -> int:
        """Launch a kernel with its packed parameter buffer. Returns a ``CUresult`` value."""

    def launch_cooperative(
        self, function: int, stream: int, shape: Shape, parameters: bytes | memoryview
    ) -> int:
        """Launch a kernel whose blocks all run at once. Returns a ``CUresult`` value."""
        return NOT_SUPPORTED

    @abstractmethod
    def occupancy(self, function: int, block_size: int, shared: int, flags: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and how many blocks run on a multiprocessor at once."""

    @abstractmethod
    def available_shared(self, function: int, blocks: int, block_size: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and the bytes that each of so many blocks may have."""

    def prepare_launch(
        self, function: int, stream: int, shape: Shape, length: int
    ) -> Callable[[bytes], int]:
        """Return `launch_packed` for parameters alone, for a launch that has gone well.

        Good for parameters of that length, in the context that is current now, and for as
        long as the function and the stream are there.
        """
        return functools.partial(self.launch_packed, function, stream, *shape)

    @abstractmethod
    def module_info(self, module: int) -> ModuleInfo:
        """Return what a module loaded by `cuModuleLoadData` offers."""

    @abstractmethod
    def link(self, inputs: Sequence[LinkInput]) -> tuple[int, bytes]:
        """Return a ``CUresult`` value and the image that several inputs make together."""

    @abstractmethod
    def describe_image(self, image: bytes) -> tuple[int, ModuleInfo | None]:
        """Return a ``CUresult`` value and, on success, what a module of an image would offer.

        In no context: its variables have no addresses.
        """

    @abstractmethod
    def allocate_at(self, device: int, address: int, size: int, stream: int | None = None) -> int:
        """Allocate exactly at ``address``. Returns a ``CUresult`` value; 2 if it cannot be had.

        With a ``stream`` (a real handle) do as `cuMemAllocAsync` does: in its order and context.
        """

    @abstractmethod
    def load_module_at(self, image: bytes, addresses: dict[str, int]) -> tuple[int, int]:
        """Load an image with its globals at given addresses; return (``CUresult`` value, module).

        Fails with 2 if an address cannot be had: memory is never moved silently.
        """

    @abstractmethod
    def regions(self) -> Sequence[Region]:
        """Return every live allocation and module variable of the process, by address."""

    @abstractmethod
    def view(self, region: Region) -> memoryview | None:
        """Return the bytes of a region, writable; None if the host cannot address them.

        Only while the device is idle.
        """

    @abstractmethod
    def read(self, region: Region, offset: int, target: memoryview) -> None:
        """Copy bytes of a region of the idle device into ``target``."""

    def reader(self, region: Region) -> Callable[[int, memoryview], None]:
        """Return what copies bytes of a region, from an offset on, while the device is idle.

        One other thread may call it, beside calls here that give the device no work.
        """
        return functools.partial(self.read, region)

    @abstractmethod
    def write(self, region: Region, offset: int, data: memoryview) -> None:
        """Copy ``data`` into a region of the idle device."""

    @abstractmethod
    def pieces(self) -> list[Piece]:
        """Return the pieces of memory in which allocations live."""

    @abstractmethod
    def share(self, piece: Piece) -> int:
        """Return a descriptor of a piece; it is the caller's to close.

        What the device does while it is not idle may or may not be in it.

        Raises
        ------
        CheckpointError
            The device cannot share its memory.
        """

    @abstractmethod
    def adopt(self, memory: Sequence[SharedMemory], allocations: Sequence[OwnedRegion]) -> int:
        """Take over shared memory and what lives in it, at the same addresses.

        Before anything else is allocated; the descriptors stay the caller's.

        Returns
        -------
        int
            A ``CUresult`` value; after a failure only a new process can try again.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop the device's threads and give its memory back."""
