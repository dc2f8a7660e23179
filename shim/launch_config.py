"""Launch configurations of `cuLaunchKernelEx`, for programs without the CUDA bindings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class CUlaunchAttribute:
    """One attribute of a launch; ``value`` is a number, or has CUDA's fields."""

    id: int = 0
    value: Any = 0


@dataclass
class CUlaunchConfig:
    """Grid, block, shared memory, stream and attributes of a launch."""

    gridDimX: int = 1
    gridDimY: int = 1
    gridDimZ: int = 1
    blockDimX: int = 1
    blockDimY: int = 1
    blockDimZ: int = 1
    sharedMemBytes: int = 0
    hStream: Any = 0
    attrs: list[CUlaunchAttribute] = field(default_factory=list)
    numAttrs: int = 0
