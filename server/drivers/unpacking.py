"""Compressed bytes of unknown origin: unpacked into as much memory as was said, and no more."""

from __future__ import annotations

import lz4.block
import zstandard

from outlast.images import BadImage

#: LZ4 makes no more than so many bytes of one.
_LZ4_RATIO = 255


def from_lz4(packed: memoryview, size: int) -> bytes:
    """Return the ``size`` bytes of an LZ4 block.

    Raises
    ------
    BadImage
        It is damaged, or holds more or less.
    """
    if size > _LZ4_RATIO * len(packed):
        raise BadImage(f"{len(packed)} bytes packed by LZ4 cannot hold {size}")
    try:
        contents: bytes = lz4.block.decompress(packed, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
        raise BadImage(f"bytes packed by LZ4 are damaged: {error}") from error
    return _checked(contents, size)


def from_zstd(packed: memoryview, size: int) -> bytes:
    """Return the ``size`` bytes of a zstd frame.

    Raises
    ------
    BadImage
        It is damaged, or holds more or less.
    """
    # As a stream, which makes no more than it is asked for, whatever the frame says.
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return _checked(stream.read(size) + stream.read(1), size)
    except (zstandard.ZstdError, MemoryError) as error:
        raise BadImage(f"bytes packed by zstd are damaged: {error}") from error


def _checked(contents: bytes, size: int) -> bytes:
    if len(contents) != size:
        raise BadImage(f"{len(contents)} bytes were packed or more, not {size}")
    return contents
