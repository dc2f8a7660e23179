"""Host side of a copy: an address, or any object with the buffer protocol."""

from __future__ import annotations

import ctypes
from typing import Any

from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, require
from outlast.shim.handles import as_int


def readable(client: Client, source: Any, size: int) -> memoryview:
    """Return ``size`` host bytes to read; INVALID_VALUE if the object has fewer."""
    view = _buffer(source)
    if view is None:
        return _at(client, as_int(source), size)
    require(view.nbytes >= size)
    try:
        return view.cast("B")[:size]
    except TypeError:
        # Only plain element types can be cast; this also covers strided arrays.
        return memoryview(view.tobytes())[:size]


def writable(client: Client, target: Any, size: int) -> memoryview:
    """Return ``size`` host bytes to write; INVALID_VALUE if the object has fewer or is constant."""
    view = _buffer(target)
    if view is None:
        return _at(client, as_int(target), size)
    require(view.nbytes >= size and not view.readonly and view.c_contiguous)
    try:
        return view.cast("B")[:size]
    except TypeError:
        return _bytes_of((ctypes.c_char * size).from_buffer(target))


def address_of(thing: Any) -> int:
    """Return the address of host memory: the number itself, or where an object's bytes begin.

    INVALID_VALUE if the object's bytes are constant or not in one piece.
    """
    if _buffer(thing) is None:
        return as_int(thing)
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(thing))
    except (TypeError, ValueError, BufferError) as error:
        raise CallFailure(1) from error


def extent(thing: Any, size: int) -> tuple[int, int]:
    """Return where the first ``size`` bytes of host memory begin and end.

    An object that does not tell may be anywhere; constant bytes are nowhere anybody writes.
    """
    if isinstance(thing, bytes):
        return 0, 0
    try:
        start = address_of(thing)
    except CallFailure:
        return 0, 1 << 64
    return start, start + size


def _buffer(thing: Any) -> memoryview | None:
    if isinstance(thing, int):
        return None
    try:
        return memoryview(thing)
    except TypeError:
        return None


def _at(client: Client, address: int, size: int) -> memoryview:
    pinned = client.pinned.view(address, size)
    if pinned is not None:
        return pinned
    # Device memory is not mapped here: touching it would kill the process.
    if address <= 0 or client.in_arena(address) or client.in_arena(address + size - 1):
        raise CallFailure(1)
    return _bytes_of((ctypes.c_char * size).from_address(address))


def _bytes_of(array: ctypes.Array[ctypes.c_char]) -> memoryview:
    return memoryview(array).cast("B")
