"""Fatbins: some that NVIDIA's tools have made, and a writer of others."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import lz4.block
import zstandard
from helpers.server_process import DEVICE

#: The newest architecture for which they have a text that the tested device runs.
CHOSEN = 80 if DEVICE == "emulated" else 90
SAMPLES = Path(__file__).parents[1] / "kernels" / "fatbins"
PTX, ELF = 1, 2
LZ4, ZSTD = 0x2000, 0x8000


def sample(name: str) -> bytes:
    """Return one of the fatbins with the kernel ``which``."""
    return (SAMPLES / f"{name}.fatbin").read_bytes()


def text(arch: int) -> bytes:
    """Return the text in them for an architecture."""
    return (SAMPLES / "which.ptx.in").read_bytes().replace(b"@ARCH@", b"%d" % arch) + b"\0"


def entry(
    kind: int, arch: int, data: bytes, flags: int = 0, size: int | None = None, header: int = 64
) -> bytes:
    """Return one entry, packed as ``flags`` say; ``size`` is another length than the true one."""
    packed = data
    if flags & LZ4:
        packed = lz4.block.compress(data, store_size=False)
    elif flags & ZSTD:
        packed = zstandard.ZstdCompressor().compress(data)
    size = len(data) if size is None else size
    stored = packed + bytes(-len(packed) % 8)
    compressed = len(packed) if flags & (LZ4 | ZSTD) else 0
    fields = (kind, 0x101, header, len(stored), compressed, 0, 0, 8, arch, 0, 0, flags, 0, size)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields) + stored


def fatbin(*entries: bytes) -> bytes:
    """Return a fatbin of entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def wrapper(address: int) -> bytes:
    """Return what a compiler puts in front of a fatbin, which is at an address."""
    return struct.pack("<IIQQ", 0x466243B1, 1, address, 0)


#: Whoever gets an address keeps nothing.
_KEPT: list[InMemory] = []


class InMemory:
    """Bytes at an address of this process, which stay there."""

    def __init__(self, data: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(data, len(data))
        self.address = ctypes.addressof(self._buffer)
        _KEPT.append(self)

    def put(self, data: bytes) -> None:
        """Put other bytes there."""
        self._buffer[: len(data)] = data
