"""A CUDA program against a session server, in this process, with its results checked."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers import ptx
from helpers.server_process import assert_eventually

from outlast.config import ClientConfig
from outlast.session.rows import EpochRow
from outlast.session.store import Store
from outlast.shim import driver as cuda
from outlast.shim.connection import OWNER, connect
from outlast.shim.link import SessionLink

#: Parameter of a kernel: name of its C type and its value.
Parameter = tuple[str, Any]

TYPES: dict[str, Any] = {
    "pointer": ctypes.c_void_p,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
}


def ok(returned: tuple[Any, ...]) -> Any:
    """Return the outputs of a call that must have succeeded."""
    result, *outputs = returned
    assert result == cuda.CUresult.CUDA_SUCCESS, (result, cuda.last_error())
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def open_link(endpoint: str, session: str, state: Path, **settings: Any) -> SessionLink:
    """Connect to a session; the caller closes the link."""
    config = ClientConfig(server=endpoint, session=session, state_dir=state, **settings)
    link = connect(config)
    atexit.unregister(link.close)
    os.environ.pop(OWNER, None)
    return link


class Program:
    """A program that has initialised CUDA and made device 0's primary context current.

    Its methods take and return plain values, so that another process can be asked to call
    them (see `helpers.program_process`).
    """

    def __init__(self, endpoint: str, session: str, state: Path, **settings: Any) -> None:
        self.begin(open_link(endpoint, session, state, **settings))

    def begin(self, link: SessionLink) -> None:
        """Initialise CUDA over a link."""
        self.link = link
        cuda.use_link(link)
        ok(cuda.cuInit(0))
        self.use_primary()

    def close(self, end: bool = False) -> None:
        """Say good-bye."""
        cuda.use_link(None)
        self.link.close(end)

    def use_primary(self) -> None:
        """Make the primary context current in the calling thread."""
        ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))

    # -- calls ---------------------------------------------------------------------------------

    def load(self, text: str) -> int:
        """Load a module."""
        return int(ok(cuda.cuModuleLoadData(text.encode())))

    def kernel(self, module: int, name: str) -> int:
        """Look a kernel up."""
        return int(ok(cuda.cuModuleGetFunction(module, name.encode())))

    def context(self) -> int:
        """Make a context; the current one stays current."""
        made = int(ok(cuda.cuCtxCreate(None, 0, 0)))
        ok(cuda.cuCtxPopCurrent())
        return made

    def stream(self, flags: int = 0, priority: int = 0) -> int:
        """Make a stream."""
        return int(ok(cuda.cuStreamCreateWithPriority(flags, priority)))

    def event(self, flags: int = 0) -> int:
        """Make an event."""
        return int(ok(cuda.cuEventCreate(flags)))

    def record(self, event: int, stream: int = 0) -> None:
        """Record an event."""
        ok(cuda.cuEventRecord(event, stream))

    def variable(self, module: int, name: str) -> tuple[int, int]:
        """Return address and size of a module's variable."""
        address, size = ok(cuda.cuModuleGetGlobal(module, name.encode()))
        return int(address), int(size)

    def set_shared(self, function: int, size: int) -> None:
        """Let a kernel be launched with so much dynamic shared memory."""
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(cuda.cuFuncSetAttribute(function, attribute, size))

    def alloc(self, size: int) -> int:
        """Allocate zeroed memory."""
        address = int(ok(cuda.cuMemAlloc(size)))
        ok(cuda.cuMemsetD8(address, 0, size))
        return address

    def free(self, address: int) -> None:
        """Free memory."""
        ok(cuda.cuMemFree(address))

    def free_memory(self) -> int:
        """Return the bytes that are free on the device."""
        return int(ok(cuda.cuMemGetInfo())[0])

    def alloc_in(self, stream: int, size: int) -> int:
        """Allocate zeroed memory in a stream's order."""
        address = int(ok(cuda.cuMemAllocAsync(size, stream)))
        ok(cuda.cuMemsetD8Async(address, 0, size, stream))
        return address

    def free_in(self, stream: int, address: int) -> None:
        """Free memory in a stream's order."""
        ok(cuda.cuMemFreeAsync(address, stream))

    def write(self, address: int, data: bytes) -> None:
        """Copy to the device."""
        ok(cuda.cuMemcpyHtoD(address, data, len(data)))

    def read(self, address: int, size: int) -> bytes:
        """Copy from the device."""
        data = bytearray(size)
        ok(cuda.cuMemcpyDtoH(data, address, size))
        return bytes(data)

    def number(self, address: int, size: int = 8) -> int:
        """Read an unsigned number."""
        return int.from_bytes(self.read(address, size), "little")

    def launch(
        self,
        function: int,
        parameters: Sequence[Parameter],
        stream: int = 0,
        *,
        blocks: int = 1,
        threads: int = 1,
    ) -> None:
        """Launch a kernel, by default one thread."""
        values = tuple(value for _, value in parameters)
        types = tuple(TYPES[name] for name, _ in parameters)
        ok(
            cuda.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, types), 0
            )
        )

    def sync(self) -> None:
        """Wait for everything."""
        ok(cuda.cuCtxSynchronize())

    def reconnects(self) -> int:
        """Return how often the connection was lost and came back."""
        return self.link.reconnects

    # -- the tape ------------------------------------------------------------------------------

    def new_tape(self) -> tuple[int, int]:
        """Return an ``append`` kernel and a zeroed target."""
        return self.kernel(self.load(ptx.TAPE), "append"), self.alloc(8)

    def append(self, kernel: int, target: int, digits: Sequence[int]) -> None:
        """Launch ``append`` for each digit."""
        for digit in digits:
            self.launch(kernel, (("pointer", target), ("u32", digit)))

    # -- epochs --------------------------------------------------------------------------------

    def request_epoch(self) -> int:
        """Ask for an epoch of everything so far; return the seq it will have."""
        self.sync()
        self.link.request_epoch()
        return self.link.next_seq - 1

    def checkpoint(self, state: Path) -> int:
        """Take an epoch and wait until it is committed in the journal of a server."""
        seq = self.request_epoch()
        wait_for_epoch(state, self.link.session_id, seq)
        return seq

    def checkpoint_of(self, state: str) -> int:
        """Do as `checkpoint`, for another process that asks."""
        return self.checkpoint(Path(state))


def tape_of(digits: Sequence[int], start: int = 0) -> int:
    """Return what a tape holds after these digits."""
    value = start
    for digit in digits:
        value = (value * 10 + digit) % (1 << 64)
    return value


@contextlib.contextmanager
def running(
    endpoint: str, session: str, state: Path, end: bool = False, **settings: Any
) -> Iterator[Program]:
    """Run a program in this process for the length of a block."""
    program = Program(endpoint, session, state, **settings)
    try:
        yield program
    finally:
        program.close(end)


@contextlib.contextmanager
def journal_of(state: Path) -> Iterator[Store]:
    """Open the journal of a server that keeps it in its state folder."""
    store = Store.open(f"sqlite:///{state / 'journal.db'}")
    try:
        yield store
    finally:
        store.close()


def epochs_of(state: Path, session: str) -> list[EpochRow]:
    """Return a session's usable epochs, newest first."""
    with journal_of(state) as journal:
        return journal.epochs(session)


def wait_for_epoch(state: Path, session: str, seq: int) -> None:
    """Wait until the epoch at ``seq`` is committed."""
    with journal_of(state) as journal:
        assert_eventually(
            lambda: any(row.seq >= seq for row in journal.epochs(session)),
            f"epoch {seq} of {session} is committed",
        )
