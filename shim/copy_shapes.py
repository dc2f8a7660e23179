"""Copies of rows as programs describe them; the structures of the bindings work as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class CUDA_MEMCPY2D:
    """A copy of rows between two pieces of memory."""

    srcXInBytes: int = 0
    srcY: int = 0
    srcMemoryType: int = 0
    srcHost: Any = 0
    srcDevice: Any = 0
    srcArray: Any = 0
    srcPitch: int = 0
    dstXInBytes: int = 0
    dstY: int = 0
    dstMemoryType: int = 0
    dstHost: Any = 0
    dstDevice: Any = 0
    dstArray: Any = 0
    dstPitch: int = 0
    WidthInBytes: int = 0
    Height: int = 0


@dataclass
class CUDA_MEMCPY3D:
    """A copy of slices of rows between two pieces of memory."""

    srcXInBytes: int = 0
    srcY: int = 0
    srcZ: int = 0
    srcLOD: int = 0
    srcMemoryType: int = 0
    srcHost: Any = 0
    srcDevice: Any = 0
    srcArray: Any = 0
    srcPitch: int = 0
    srcHeight: int = 0
    dstXInBytes: int = 0
    dstY: int = 0
    dstZ: int = 0
    dstLOD: int = 0
    dstMemoryType: int = 0
    dstHost: Any = 0
    dstDevice: Any = 0
    dstArray: Any = 0
    dstPitch: int = 0
    dstHeight: int = 0
    WidthInBytes: int = 0
    Height: int = 0
    Depth: int = 0
