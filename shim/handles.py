"""Handle types of the client API: integers that know what they name.

They hash and compare as plain integers, and `as_int` reads the classes of
`cuda.bindings.driver` alike, so that programs may mix both.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any


class _Handle(int):
    """An integer printed with its kind."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {int(self):#x}>"


class CUdevice(_Handle):
    """Ordinal of a device."""


class CUdeviceptr(_Handle):
    """Address in device memory."""


class CUcontext(_Handle):
    """Context."""


class CUmodule(_Handle):
    """Loaded module."""


class CUfunction(_Handle):
    """Kernel of a loaded module."""


class CUlibrary(_Handle):
    """Library of kernels for any context."""


class CUkernel(_Handle):
    """Kernel of a library."""


class CUlinkState(_Handle):
    """Link that is being prepared."""


class CUstream(_Handle):
    """Stream."""


class CUevent(_Handle):
    """Event."""


class CUmemoryPool(_Handle):
    """Memory pool."""


class CUuuid:
    """Universally unique identifier of a device."""

    __slots__ = ("bytes",)

    def __init__(self, value: bytes) -> None:
        self.bytes = value

    def __eq__(self, other: object) -> bool:
        return self.bytes == getattr(other, "bytes", None)

    def __hash__(self) -> int:
        return hash(self.bytes)

    def __repr__(self) -> str:
        return f"<CUuuid {self.bytes.hex()}>"


def as_int(value: Any) -> int:
    """Return the number behind a handle, pointer or integer; None is 0.

    Raises
    ------
    TypeError
        The value is none of these.
    """
    if value is None:
        return 0
    try:
        return operator.index(value)
    except TypeError:
        if isinstance(value, ctypes.c_void_p):
            return value.value or 0
        if isinstance(value, str | bytes | float) or not hasattr(value, "__int__"):
            raise
        return int(value)
