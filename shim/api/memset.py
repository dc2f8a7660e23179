"""Fills of device memory."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, api, client
from outlast.shim.failure import require
from outlast.shim.handles import as_int

__all__ = [
    "cuMemsetD2D8",
    "cuMemsetD2D8Async",
    "cuMemsetD2D16",
    "cuMemsetD2D16Async",
    "cuMemsetD2D32",
    "cuMemsetD2D32Async",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuMemsetD16",
    "cuMemsetD16Async",
    "cuMemsetD32",
    "cuMemsetD32Async",
]

_ASYNC, _SYNC = 0, 1


@api()
def cuMemsetD8(dstDevice: Any, uc: int, N: int) -> tuple[CUresult]:
    """Fill ``N`` bytes."""
    return _fill(dstDevice, uc, N, 1, 0, _SYNC)


@api()
def cuMemsetD16(dstDevice: Any, us: int, N: int) -> tuple[CUresult]:
    """Fill ``N`` elements of two bytes."""
    return _fill(dstDevice, us, N, 2, 0, _SYNC)


@api()
def cuMemsetD32(dstDevice: Any, ui: int, N: int) -> tuple[CUresult]:
    """Fill ``N`` elements of four bytes."""
    return _fill(dstDevice, ui, N, 4, 0, _SYNC)


@api()
def cuMemsetD8Async(dstDevice: Any, uc: int, N: int, hStream: Any) -> tuple[CUresult]:
    """Fill ``N`` bytes in a stream's order."""
    return _fill(dstDevice, uc, N, 1, hStream, _ASYNC)


@api()
def cuMemsetD16Async(dstDevice: Any, us: int, N: int, hStream: Any) -> tuple[CUresult]:
    """Fill ``N`` elements of two bytes in a stream's order."""
    return _fill(dstDevice, us, N, 2, hStream, _ASYNC)


@api()
def cuMemsetD32Async(dstDevice: Any, ui: int, N: int, hStream: Any) -> tuple[CUresult]:
    """Fill ``N`` elements of four bytes in a stream's order."""
    return _fill(dstDevice, ui, N, 4, hStream, _ASYNC)


@api()
def cuMemsetD2D8(
    dstDevice: Any, dstPitch: int, uc: int, Width: int, Height: int
) -> tuple[CUresult]:
    """Fill ``Width`` elements of a byte in each of ``Height`` rows."""
    return _fill_rows(dstDevice, dstPitch, uc, Width, Height, 1, 0, _SYNC)


@api()
def cuMemsetD2D8Async(
    dstDevice: Any, dstPitch: int, uc: int, Width: int, Height: int, hStream: Any
) -> tuple[CUresult]:
    """Fill ``Width`` elements of a byte in each of ``Height`` rows, in a stream's order."""
    return _fill_rows(dstDevice, dstPitch, uc, Width, Height, 1, hStream, _ASYNC)


@api()
def cuMemsetD2D16(
    dstDevice: Any, dstPitch: int, us: int, Width: int, Height: int
) -> tuple[CUresult]:
    """Fill ``Width`` elements of two bytes in each of ``Height`` rows."""
    return _fill_rows(dstDevice, dstPitch, us, Width, Height, 2, 0, _SYNC)


@api()
def cuMemsetD2D16Async(
    dstDevice: Any, dstPitch: int, us: int, Width: int, Height: int, hStream: Any
) -> tuple[CUresult]:
    """Fill ``Width`` elements of two bytes in each of ``Height`` rows, in a stream's order."""
    return _fill_rows(dstDevice, dstPitch, us, Width, Height, 2, hStream, _ASYNC)


@api()
def cuMemsetD2D32(
    dstDevice: Any, dstPitch: int, ui: int, Width: int, Height: int
) -> tuple[CUresult]:
    """Fill ``Width`` elements of four bytes in each of ``Height`` rows."""
    return _fill_rows(dstDevice, dstPitch, ui, Width, Height, 4, 0, _SYNC)


@api()
def cuMemsetD2D32Async(
    dstDevice: Any, dstPitch: int, ui: int, Width: int, Height: int, hStream: Any
) -> tuple[CUresult]:
    """Fill ``Width`` elements of four bytes in each of ``Height`` rows, in a stream's order."""
    return _fill_rows(dstDevice, dstPitch, ui, Width, Height, 4, hStream, _ASYNC)


def _fill(
    target: Any, value: int, count: int, width: int, hStream: Any, flags: int
) -> tuple[CUresult]:
    me = client()
    context = me.enter()
    address, count, value = as_int(target), as_int(count), as_int(value)
    require(0 <= value < 1 << (8 * width))
    require(count >= 0 and address % width == 0)
    stream = me.make_room(hStream, context)
    if count:
        with me.lock:
            me.allocations.check_range(address, count * width)
            me.link.send(Op.MEMSET, address, stream.handle, count, value, width, flags, lane=stream)
        if flags == _SYNC and me.landings:
            me.landings.wait_as_legacy(stream.context)
    return OK


def _fill_rows(
    target: Any,
    pitch: int,
    value: int,
    columns: int,
    rows: int,
    width: int,
    hStream: Any,
    flags: int,
) -> tuple[CUresult]:
    me = client()
    context = me.enter()
    address, value, pitch = as_int(target), as_int(value), as_int(pitch)
    columns, rows = as_int(columns), as_int(rows)
    require(0 <= value < 1 << (8 * width))
    require(columns >= 0 and rows >= 0 and address % width == 0)
    size = columns * width
    require(0 <= pitch < 1 << 62 and pitch % width == 0 and (pitch >= size or rows <= 1))
    stream = me.make_room(hStream, context)
    if columns and rows:
        with me.lock:
            me.allocations.check_range(address, (rows - 1) * pitch + size)
            me.link.send(
                Op.MEMSET_2D,
                address,
                stream.handle,
                pitch,
                columns,
                rows,
                value,
                width,
                flags,
                lane=stream,
            )
        if flags == _SYNC and me.landings:
            me.landings.wait_as_legacy(stream.context)
    return OK
