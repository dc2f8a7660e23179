"""Images of code, which CUDA programs pass without a length: where they are, where they end.

PTX text ends with a zero byte, machine code (ELF) and fatbins say themselves how long they are.
Compilers embed fatbins behind a wrapper, whose pointer leads to one.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import ClassVar

from outlast.errors import OutlastError

ELF = b"\x7fELF"
FATBIN = struct.pack("<I", 0xBA55ED50)
WRAPPER = struct.pack("<I", 0x466243B1)
#: magic, version, header size, size of what follows it.
FATBIN_HEADER = struct.Struct("<IHHQ")
#: magic, version, address of the fatbin, address of more (not used by the driver).
WRAPPER_LAYOUT = struct.Struct("<IIQQ")
#: A longer image is taken for a damaged one.
MAX_IMAGE = 1 << 30  # bytes

_ELF_HEADER = 64  # bytes
_ELF_64 = 2
#: Offset and size in the file, and the type, of a section; of a segment.
_SECTION = struct.Struct("<4xI16xQQ24x")
_SEGMENT = struct.Struct("<8xQ16xQ16x")
_NO_BITS = 8
#: Text is read in pieces.
_PIECE = 64 << 10  # bytes

#: Returns so many bytes from an offset of an image, or raises `BadImage`.
Read = Callable[[int, int], bytes]


class BadImage(OutlastError, ValueError):
    """An image of code is damaged or cut off."""

    cu_result: ClassVar[int] = 200  # CUDA_ERROR_INVALID_IMAGE


def at_address(address: int) -> bytes:
    """Return the whole image at an address of this process.

    Raises
    ------
    BadImage
        There is no image, or no memory where it must be.
    """
    with _Memory() as memory:
        return _at(memory, address)


def complete(image: bytes) -> bytes:
    """Return the whole image that a program passed as bytes: a wrapper is followed.

    Raises
    ------
    BadImage
        It says that it is longer than it is.
    """
    if not image.startswith(WRAPPER):
        check_length(image)
        return image
    with _Memory() as memory:
        return _at(memory, _target(image[: WRAPPER_LAYOUT.size]), wrapped=True)


def check_length(image: bytes) -> None:
    """Check that all is there of what an image says that it has; text has no length.

    Raises
    ------
    BadImage
        It is cut off.
    """
    if image[:4] not in (ELF, FATBIN):
        return

    def read(offset: int, size: int) -> bytes:
        part = image[offset : offset + size]
        if len(part) < size:
            raise BadImage(f"the image is cut off after {len(image)} bytes")
        return part

    length = _length(image[:4], read)
    if length > len(image):
        raise BadImage(f"the image is cut off: it says it has {length} bytes, not {len(image)}")


def _at(memory: _Memory, address: int, wrapped: bool = False) -> bytes:
    def read(offset: int, size: int) -> bytes:
        return memory.read(address + offset, size)

    magic = memory.read(address, 1)
    if magic in (ELF[:1], FATBIN[:1], WRAPPER[:1]):
        magic = memory.read_some(address, 4)
    if magic == WRAPPER:
        if wrapped:
            raise BadImage(f"the wrapper of a fatbin at {address:#x} leads to another wrapper")
        return _at(memory, _target(read(0, WRAPPER_LAYOUT.size)), wrapped=True)
    if magic in (ELF, FATBIN):
        return read(0, _length(magic, read))
    return memory.text(address)


def _target(wrapper: bytes) -> int:
    if len(wrapper) < WRAPPER_LAYOUT.size:
        raise BadImage(f"the wrapper of a fatbin is cut off after {len(wrapper)} bytes")
    address: int = WRAPPER_LAYOUT.unpack(wrapper)[2]
    return address


def _length(magic: bytes, read: Read) -> int:
    """Return how long machine code or a fatbin says it is."""
    if magic == ELF:
        return _sane(_elf_length(read))
    _, _, header, body = FATBIN_HEADER.unpack(read(0, FATBIN_HEADER.size))
    if header < FATBIN_HEADER.size:
        raise BadImage(f"the header of a fatbin says it has {header} bytes")
    return _sane(header + body)


def _elf_length(read: Read) -> int:
    """Return where the last table, segment or section of machine code ends."""
    header = read(0, _ELF_HEADER)
    if header[4] != _ELF_64:
        raise BadImage("the machine code is no 64-bit ELF file")
    segments, sections = struct.unpack_from("<QQ", header, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from(
        "<HHHH", header, 54
    )
    if (segment_count and segment_size != _SEGMENT.size) or (
        section_count and section_size != _SECTION.size
    ):
        raise BadImage("the machine code's tables have entries of an unknown size")
    ends = [_ELF_HEADER]
    if segment_count:
        ends.append(_sane(segments + segment_count * segment_size))
        table = read(segments, segment_count * segment_size)
        ends += [offset + size for offset, size in _SEGMENT.iter_unpack(table)]
    if section_count:
        ends.append(_sane(sections + section_count * section_size))
        table = read(sections, section_count * section_size)
        ends += [o + size for kind, o, size in _SECTION.iter_unpack(table) if kind != _NO_BITS]
    return max(ends)


def _sane(length: int) -> int:
    if length > MAX_IMAGE:
        raise BadImage(f"the image says it has {length} bytes; {MAX_IMAGE} are the most")
    return length


class _Memory:
    """Memory of this process, read so that an address without any is an error, not its end."""

    def __enter__(self) -> _Memory:
        try:
            self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1  # another system, or not allowed: read as CUDA does
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        """Return so many bytes."""
        data = self.read_some(address, size)
        while len(data) < size:
            more = self.read_some(address + len(data), size - len(data))
            data += more
            if not more:
                raise BadImage(f"no memory at {address + len(data):#x}, where an image must be")
        return data

    def read_some(self, address: int, size: int) -> bytes:
        """Return up to so many bytes, none if there is no memory."""
        if not 0 < address < 1 << 63:
            raise BadImage(f"no memory at {address:#x}, where an image must be")
        if self._file < 0:
            return ctypes.string_at(address, size)
        try:
            return os.pread(self._file, size, address)
        except OSError:
            return b""

    def text(self, address: int) -> bytes:
        """Return the bytes up to a zero."""
        if self._file < 0:
            return ctypes.string_at(address)
        text = bytearray()
        while len(text) <= MAX_IMAGE:
            piece = self.read_some(address + len(text), _PIECE)
            if not piece:
                break
            end = piece.find(b"\0")
            if end >= 0:
                return bytes(text + piece[:end])
            text += piece
        raise BadImage(f"the text of an image at {address:#x} does not end")
