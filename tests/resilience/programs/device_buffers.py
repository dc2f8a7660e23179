"""Buffers in device memory, each with a model of its contents in numpy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import outlast.shim.driver as cuda

PTX = Path(__file__).resolve().parents[2] / "kernels" / "mixing.ptx"
BLOCK = 128  # threads
WORD = 4  # bytes

Words = NDArray[np.uint32]

_P, _U = ctypes.c_void_p, ctypes.c_uint
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "stir": (_P, _U, _U),
    "weave": (_P, _P, _U, _U),
    "tally": (_P, _U, _P),
    "pass": (_U,),
}


class Mismatch(Exception):
    """Device memory does not hold what its model says."""


def check(answer: tuple[Any, ...]) -> Any:
    """Return the value of a CUDA call; fail if the call did."""
    result, *values = answer
    if int(result):
        raise RuntimeError(f"{result!r}: {cuda.last_error()}")
    return values[0] if values else None


@dataclass(slots=True)
class Buffer:
    """Words in device memory and what they must be."""

    address: int
    model: Words
    #: Stream of the latest work on it, and an event of its own to order other streams by.
    stream: Any
    event: Any

    @property
    def count(self) -> int:
        """Number of words."""
        return len(self.model)


@dataclass(slots=True)
class Mixer:
    """A loaded module with its kernels and the model of its one variable."""

    module: Any = None
    passes: int = 0
    _kernels: dict[str, Any] = field(default_factory=dict)

    def load(self) -> None:
        """Load the module anew."""
        if self.module is not None:
            check(cuda.cuModuleUnload(self.module))
        self.module = check(cuda.cuModuleLoadData(PTX.read_bytes() + b"\0"))
        self.passes = 0
        self._kernels = {
            name: check(cuda.cuModuleGetFunction(self.module, name.encode())) for name in SIGNATURES
        }

    def launch(self, name: str, threads: int, stream: Any, *arguments: int) -> None:
        """Launch a kernel."""
        grid = -(-threads // BLOCK)
        parameters = (arguments, SIGNATURES[name])
        kernel = self._kernels[name]
        check(cuda.cuLaunchKernel(kernel, grid, 1, 1, BLOCK, 1, 1, 0, stream, parameters, 0))

    def variable(self) -> int:
        """Return the address of the module's variable."""
        result, address, size = cuda.cuModuleGetGlobal(self.module, b"passes")
        if int(result) or size != WORD:
            raise RuntimeError(f"cuModuleGetGlobal: {result!r}, {size} bytes")
        return int(address)


def new_buffer(count: int, stream: Any) -> Buffer:
    """Allocate a buffer and fill it with zeros on ``stream``."""
    address = int(check(cuda.cuMemAlloc(count * WORD)))
    check(cuda.cuMemsetD32Async(address, 0, count, stream))
    event = check(cuda.cuEventCreate(0))
    return Buffer(address, np.zeros(count, np.uint32), stream, event)


def use(buffer: Buffer, stream: Any) -> int:
    """Order ``stream`` behind the latest work on a buffer; return the buffer's address."""
    if buffer.stream is not stream:
        check(cuda.cuEventRecord(buffer.event, buffer.stream))
        check(cuda.cuStreamWaitEvent(stream, buffer.event, 0))
        buffer.stream = stream
    return buffer.address


def free(buffer: Buffer) -> None:
    """Give a buffer back while its latest work may still be under way."""
    check(cuda.cuEventDestroy(buffer.event))
    check(cuda.cuMemFree(buffer.address))


def read(buffer: Buffer, first: int = 0, count: int | None = None) -> Words:
    """Read words of a buffer in its stream and compare them with the model."""
    expected = buffer.model[first:] if count is None else buffer.model[first : first + count]
    words = np.empty(len(expected), np.uint32)
    source = buffer.address + first * WORD
    check(cuda.cuMemcpyDtoHAsync(words.ctypes.data, source, words.nbytes, buffer.stream))
    check(cuda.cuStreamSynchronize(buffer.stream))
    compare(words, expected, f"words {first}.. of the buffer at {buffer.address:#x}")
    return words


def compare(words: Words, expected: Words, what: str) -> None:
    """Fail naming the first word that is not as expected."""
    wrong = np.flatnonzero(words != expected)
    if len(wrong):
        at = int(wrong[0])
        raise Mismatch(
            f"{what}: {len(wrong)} of {len(words)} words differ, the first is {at}: "
            f"{words[at]:#x} instead of {expected[at]:#x}"
        )
