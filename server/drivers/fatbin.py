"""Fatbins: PTX texts and machine code for several GPUs in one image, compressed or not.

A header, then entries, each with a header of its own. Nothing in one is trusted: all lengths
are checked before they are used, and what is compressed is unpacked into no more than it says.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.images import FATBIN, FATBIN_HEADER, BadImage

#: Most that one entry may be unpacked to.
MAX_PAYLOAD = 256 << 20  # bytes

#: kind, version, header size, stored size, compressed size, place of options, minor and major
#: version of the contents, architecture, place and length of the name, flags, (unused), unpacked
#: size.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_LZ4, _ZSTD = 0x2000, 0x8000
_PACKED = _LZ4 | _ZSTD


class Kind(enum.IntEnum):
    """What an entry holds; there are more, which no driver of ours reads."""

    PTX = 1
    ELF = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One text or piece of machine code."""

    #: A `Kind`, or the number of another one.
    kind: int
    #: Compute capability that it is for, as 80 for 8.0.
    arch: int
    #: Bytes of `unpack`, as the entry says.
    size: int
    #: How it is packed, and its bytes so.
    flags: int
    stored: memoryview

    def unpack(self) -> bytes:
        """Return the contents.

        Raises
        ------
        BadImage
            They are damaged, or not as long as the entry says.
        """
        if not self.flags & _PACKED:
            return bytes(self.stored)
        if self.size > MAX_PAYLOAD:
            raise BadImage(
                f"an entry of the fatbin says it has {self.size} bytes unpacked; "
                f"{MAX_PAYLOAD} are the most"
            )
        # Loaded at need: a worker starts without what few programs use.
        from outlast.server.drivers import unpacking

        unpack = unpacking.from_lz4 if self.flags & _LZ4 else unpacking.from_zstd
        return unpack(self.stored, self.size)


def entries(image: bytes) -> tuple[Entry, ...]:
    """Return what is in a fatbin, in its order.

    Raises
    ------
    BadImage
        It is damaged or cut off.
    """
    if len(image) < FATBIN_HEADER.size or not image.startswith(FATBIN):
        raise BadImage("the image is no fatbin")
    _, _, offset, body = FATBIN_HEADER.unpack_from(image)
    end = offset + body
    if offset < FATBIN_HEADER.size or end > len(image):
        raise BadImage(f"the fatbin is cut off: it says it has {end} bytes, not {len(image)}")
    found = []
    view = memoryview(image)
    while offset < end:
        entry, offset = _read_entry(view[:end], offset)
        found.append(entry)
    return tuple(found)


def best_text(found: Sequence[Entry], arch: int) -> Entry | None:
    """Return the PTX of the newest architecture that a device of ``arch`` runs, if any."""
    texts = [entry for entry in found if entry.kind == Kind.PTX and entry.arch <= arch]
    return max(texts, key=lambda entry: entry.arch, default=None)


def _read_entry(image: memoryview, offset: int) -> tuple[Entry, int]:
    """Return the entry at ``offset``, and where the next one begins."""
    start = offset + _ENTRY.size
    if start > len(image):
        raise BadImage(f"the fatbin ends inside the header of the entry at {offset}")
    fields = _ENTRY.unpack_from(image, offset)
    kind, _, header, stored, packed, _, _, _, arch, _, _, flags, _, size = fields
    start = offset + header
    if header < _ENTRY.size or start + stored > len(image) or packed > stored:
        raise BadImage(f"the entry at {offset} of the fatbin does not fit its lengths")
    compressed = flags & _PACKED
    payload = image[start : start + (packed if compressed and packed else stored)]
    entry = Entry(kind, arch, size if compressed else stored, flags, payload)
    return entry, start + stored
