"""Fills of device memory."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, api, client
from outlast.shim.failure import require
from outlast.shim.handles import as_int

__all__ = [
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
