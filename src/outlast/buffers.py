"""Memory of long frames, used again as soon as nobody looks at it.

Memory that is new costs more than what is put into it: a page fault for every 4 KiB.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Kept at most, of the size that was asked for last.
_MOST = 32
#: Blocks of other sizes are rare.
_SMALLEST = 64 << 10  # bytes


class Buffers:
    """Blocks of one size at a time."""

    def __init__(self) -> None:
        self._size = 0
        self._blocks: deque[bytearray] = deque()

    def take(self, size: int) -> memoryview:
        """Return a block, with anything in it; it is free again when all views of it are gone."""
        if size < _SMALLEST:
            return memoryview(bytearray(size))
        blocks = self._blocks
        if size != self._size:
            self._size = size
            blocks.clear()
        for _ in range(min(2, len(blocks))):
            blocks.rotate(-1)
            if _is_free(blocks[-1]):
                return memoryview(blocks[-1])
        block = bytearray(size)
        if len(blocks) < _MOST:
            blocks.append(block)
        return memoryview(block)


def _is_free(block: bytearray) -> bool:
    try:
        block.append(block.pop())  # what is looked at cannot change its size
    except BufferError:
        return False
    return True


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes to as many others, while other threads run.

    A slice assignment would keep them waiting: it holds the interpreter's lock.

    Raises
    ------
    ValueError
        They are not of the same number, or not bytes.
    """
    if source.itemsize != 1 or target.itemsize != 1 or len(target) != len(source):
        raise ValueError(f"{source.nbytes} bytes of a different form than the {len(target)} here")
    with _address(target) as to, _address(source) as at:
        ctypes.memmove(to, at, len(source))


class _Buffer(ctypes.Structure):
    """Python's ``Py_buffer``."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer: Any = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer: Any = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_Buffer),)
_release_buffer.restype = None


@contextmanager
def _address(view: memoryview) -> Iterator[int]:
    """Give the address of contiguous bytes, which stay where they are meanwhile."""
    buffer = _Buffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    try:
        yield buffer.buf or 0
    finally:
        _release_buffer(ctypes.byref(buffer))
