"""Bytes of a module image, which CUDA programs pass without a length."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from outlast.shim.failure import require
from outlast.shim.handles import as_int

_ELF = b"\x7fELF"
_FATBIN = struct.pack("<I", 0xBA55ED50)
#: Pointer to a fatbin with a magic in front, as compilers emit it.
_WRAPPER = struct.pack("<I", 0x466243B1)


def image_bytes(image: Any) -> bytes:
    """Return the bytes of an image given as a buffer or as the address of one.

    Raises
    ------
    TypeError
        The image is neither.
    """
    try:
        data = memoryview(image).tobytes()
    except TypeError:
        address = as_int(image)
        require(address > 0)
        data = _read(address)
    require(data)
    return data


def _read(address: int) -> bytes:
    magic = ctypes.string_at(address, 1)
    if magic == _ELF[:1] and ctypes.string_at(address, 4) == _ELF:
        return ctypes.string_at(address, _elf_size(ctypes.string_at(address, 64)))
    if magic == _FATBIN[:1] and ctypes.string_at(address, 4) == _FATBIN:
        _, _, header, body = struct.unpack("<IHHQ", ctypes.string_at(address, 16))
        return ctypes.string_at(address, header + body)
    if magic == _WRAPPER[:1] and ctypes.string_at(address, 4) == _WRAPPER:
        (target,) = struct.unpack("<Q", ctypes.string_at(address + 8, 8))
        require(target)
        return _read(target)
    return ctypes.string_at(address)


def _elf_size(header: bytes) -> int:
    """Return the end of the last header table, which CUDA's linker places last."""
    programs, sections = struct.unpack_from("<QQ", header, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from(
        "<HHHH", header, 54
    )
    ends = programs + program_size * program_count, sections + section_size * section_count
    return int(max(ends))
