"""Copies of rows (2D) and of slices of them (3D) between host and device memory.

Rows to and from the host travel densely packed, many in a call. All of them are waited for when
they come to the host; what is copied to the device is taken at the call, as by other copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlast.cuda_types import CUmemorytype, CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, api, client
from outlast.shim.client import Client
from outlast.shim.failure import check, require
from outlast.shim.handles import as_int
from outlast.shim.host_memory import extent, readable, writable
from outlast.shim.objects import Stream

__all__ = [
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
]

_ASYNC, _SYNC = 0, 1
_HOST = int(CUmemorytype.CU_MEMORYTYPE_HOST)
_DEVICE = int(CUmemorytype.CU_MEMORYTYPE_DEVICE)
_UNIFIED = int(CUmemorytype.CU_MEMORYTYPE_UNIFIED)
#: Most bytes that travel in one call.
_PART = 256 << 10
#: More than any memory has.
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class _Side:
    """Where rows are: host memory (an address or an object), or a device address."""

    on_host: bool
    memory: Any
    #: Of the first row, from there.
    offset: int
    pitch: int
    #: From one slice to the next.
    slice: int

    def at(self, depth: int) -> int:
        """Return where a slice begins."""
        return self.offset + depth * self.slice


@dataclass(frozen=True, slots=True)
class _Shape:
    width: int  # bytes
    height: int
    depth: int


@api()
def cuMemcpy2D(pCopy: Any) -> tuple[CUresult]:
    """Copy rows."""
    return _copy(client(), pCopy, 0, _SYNC)


@api()
def cuMemcpy2DUnaligned(pCopy: Any) -> tuple[CUresult]:
    """Copy rows that may begin anywhere."""
    return _copy(client(), pCopy, 0, _SYNC)


@api()
def cuMemcpy2DAsync(pCopy: Any, hStream: Any) -> tuple[CUresult]:
    """Copy rows in a stream's order."""
    return _copy(client(), pCopy, hStream, _ASYNC)


@api()
def cuMemcpy3D(pCopy: Any) -> tuple[CUresult]:
    """Copy slices of rows."""
    return _copy(client(), pCopy, 0, _SYNC)


@api()
def cuMemcpy3DAsync(pCopy: Any, hStream: Any) -> tuple[CUresult]:
    """Copy slices of rows in a stream's order."""
    return _copy(client(), pCopy, hStream, _ASYNC)


def _copy(me: Client, given: Any, hStream: Any, flags: int) -> tuple[CUresult]:
    context = me.enter()
    require(given is not None and given != 0)
    sizes = [as_int(given.WidthInBytes), as_int(given.Height), as_int(getattr(given, "Depth", 1))]
    require(all(0 <= size < _MOST for size in sizes))
    shape = _Shape(*sizes)
    source, target = _side(me, given, "src", shape), _side(me, given, "dst", shape)
    stream = me.make_room(hStream, context)
    if not (shape.width and shape.height):
        return OK
    for depth in range(shape.depth):
        if source.on_host and target.on_host:
            me.synchronize(stream)
            _copy_on_host(me, source, target, shape, depth)
        elif source.on_host:
            _upload(me, source, target, shape, depth, stream, flags)
        elif target.on_host:
            _download(me, source, target, shape, depth, stream, flags)
        else:
            _move(me, source, target, shape, depth, stream, flags)
        stream = me.make_room(hStream, context)
    if flags == _SYNC and me.landings:
        me.landings.wait_as_legacy(context)
    return OK


def _side(me: Client, given: Any, name: str, shape: _Shape) -> _Side:
    """Return one side of a copy; arrays are not supported."""

    def number(field: str) -> int:
        value = as_int(getattr(given, name + field, 0))
        require(0 <= value < _MOST)
        return value

    kind = as_int(getattr(given, f"{name}MemoryType"))
    require(kind in (_HOST, _DEVICE, _UNIFIED), CUresult.CUDA_ERROR_NOT_SUPPORTED)
    memory = getattr(given, f"{name}Host" if kind == _HOST else f"{name}Device")
    if kind == _UNIFIED and not me.in_arena(as_int(memory)):
        kind = _HOST
    on_host = kind == _HOST
    x, pitch = number("XInBytes"), number("Pitch") or shape.width
    require(shape.width + x <= pitch or (shape.height <= 1 and shape.depth <= 1))
    rows = number("Height") or shape.height
    require(shape.height + number("Y") <= rows or shape.depth <= 1)
    offset = x + number("Y") * pitch + number("Z") * rows * pitch
    return _Side(on_host, memory if on_host else as_int(memory), offset, pitch, rows * pitch)


def _extent(side: _Side, shape: _Shape) -> int:
    """Return how many bytes there are from the first row's begin to the last one's end."""
    return (shape.height - 1) * side.pitch + shape.width


def _parts(shape: _Shape) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of what travels together."""
    rows = max(1, _PART // shape.width)
    for first in range(0, shape.height, rows):
        yield first, min(rows, shape.height - first)


def _upload(
    me: Client, source: _Side, target: _Side, shape: _Shape, depth: int, stream: Stream, flags: int
) -> None:
    address = target.memory + target.at(depth)
    me.allocations.check_range(address, _extent(target, shape))
    begin = source.at(depth)
    end = begin + _extent(source, shape)
    if me.landings:
        me.landings.wait_for_range(*extent(source.memory, end))
    data = readable(me, source.memory, end).cast("B")[begin:]
    if shape.width == source.pitch == target.pitch or shape.height == 1:
        check(me.link.write_from(address, stream, flags, data))
        return
    for first, count in _parts(shape):
        rows = [data[at : at + shape.width] for at in _begins(source, first, count)]
        to = address + first * target.pitch
        if shape.width > _PART:
            check(me.link.write_from(to, stream, flags, rows[0]))
        else:
            where = (to, stream.handle, target.pitch, shape.width, flags)
            me.link.send(Op.COPY_HTOD_2D, *where, data=b"".join(rows), lane=stream)


def _download(
    me: Client, source: _Side, target: _Side, shape: _Shape, depth: int, stream: Stream, flags: int
) -> None:
    address = source.memory + source.at(depth)
    me.allocations.check_range(address, _extent(source, shape))
    begin = target.at(depth)
    out = writable(me, target.memory, begin + _extent(target, shape)).cast("B")[begin:]
    if shape.width == source.pitch == target.pitch or shape.height == 1:
        me.waited(stream.context, me.link.read_into(address, len(out), stream, flags, out))
        return
    for first, count in _parts(shape):
        begins = _begins(target, first, count)
        start = address + first * source.pitch
        if shape.width > _PART:
            row = out[begins[0] : begins[0] + shape.width]
            me.waited(stream.context, me.link.read_into(start, len(row), stream, flags, row))
            continue
        where = (start, stream.handle, source.pitch, shape.width, count, flags)
        reply = me.link.call(Op.COPY_DTOH_2D, *where, lane=stream)
        me.waited(stream.context, reply.result)
        data = memoryview(reply.data)
        require(len(data) == count * shape.width, CUresult.CUDA_ERROR_UNKNOWN)
        for row_number, at in enumerate(begins):
            start_of_row = row_number * shape.width
            out[at : at + shape.width] = data[start_of_row : start_of_row + shape.width]


def _move(
    me: Client, source: _Side, target: _Side, shape: _Shape, depth: int, stream: Stream, flags: int
) -> None:
    to, at = target.memory + target.at(depth), source.memory + source.at(depth)
    with me.lock:
        me.allocations.check_range(to, _extent(target, shape))
        me.allocations.check_range(at, _extent(source, shape))
        pitches = target.pitch, source.pitch
        if shape.height == 1:
            pitches = shape.width, shape.width
        where = (to, at, stream.handle, *pitches, shape.width, shape.height, flags)
        me.link.send(Op.COPY_DTOD_2D, *where, lane=stream)


def _copy_on_host(me: Client, source: _Side, target: _Side, shape: _Shape, depth: int) -> None:
    begin, start = source.at(depth), target.at(depth)
    data = readable(me, source.memory, begin + _extent(source, shape)).cast("B")[begin:]
    out = writable(me, target.memory, start + _extent(target, shape)).cast("B")[start:]
    rows = zip(_begins(target, 0, shape.height), _begins(source, 0, shape.height), strict=True)
    for to, at in rows:
        out[to : to + shape.width] = data[at : at + shape.width]


def _begins(side: _Side, first: int, count: int) -> range:
    """Return where rows begin, from the first row of the copy."""
    return range(first * side.pitch, (first + count) * side.pitch, side.pitch)
