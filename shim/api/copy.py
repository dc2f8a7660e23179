"""Copies between host and device.

Host-to-device bytes are taken at the call, also from pinned memory, which CUDA reads only
when the stream gets there. That shows no difference as long as nothing that was issued before
can still write there: no device can reach the program's memory, and copies to the host whose
bytes are still on their way to that place are waited for first.

An asynchronous copy to pinned memory is not waited for. One to other memory is, as CUDA
promises it.
"""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, api, client
from outlast.shim.failure import check, require
from outlast.shim.handles import as_int
from outlast.shim.host_memory import extent, readable, writable

__all__ = [
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
]

_ASYNC, _SYNC = 0, 1
#: A copy to the device waits for room in its stream again after so many bytes.
PART = 256 << 20


@api()
def cuMemcpyHtoD(dstDevice: Any, srcHost: Any, ByteCount: int) -> tuple[CUresult]:
    """Copy host bytes to the device."""
    return _upload(dstDevice, srcHost, ByteCount, 0, _SYNC)


@api()
def cuMemcpyHtoDAsync(
    dstDevice: Any, srcHost: Any, ByteCount: int, hStream: Any
) -> tuple[CUresult]:
    """Copy host bytes to the device in a stream's order."""
    return _upload(dstDevice, srcHost, ByteCount, hStream, _ASYNC)


@api()
def cuMemcpyDtoH(dstHost: Any, srcDevice: Any, ByteCount: int) -> tuple[CUresult]:
    """Copy device bytes to the host."""
    return _download(dstHost, srcDevice, ByteCount, 0, _SYNC)


@api()
def cuMemcpyDtoHAsync(
    dstHost: Any, srcDevice: Any, ByteCount: int, hStream: Any
) -> tuple[CUresult]:
    """Copy device bytes to the host in a stream's order."""
    return _download(dstHost, srcDevice, ByteCount, hStream, _ASYNC)


@api()
def cuMemcpyDtoD(dstDevice: Any, srcDevice: Any, ByteCount: int) -> tuple[CUresult]:
    """Copy between device addresses."""
    return _move(dstDevice, srcDevice, ByteCount, 0, _SYNC)


@api()
def cuMemcpyDtoDAsync(
    dstDevice: Any, srcDevice: Any, ByteCount: int, hStream: Any
) -> tuple[CUresult]:
    """Copy between device addresses in a stream's order."""
    return _move(dstDevice, srcDevice, ByteCount, hStream, _ASYNC)


@api()
def cuMemcpy(dst: Any, src: Any, ByteCount: int) -> tuple[CUresult]:
    """Copy between any two addresses."""
    return _any_way(dst, src, ByteCount, 0, _SYNC)


@api()
def cuMemcpyAsync(dst: Any, src: Any, ByteCount: int, hStream: Any) -> tuple[CUresult]:
    """Copy between any two addresses in a stream's order."""
    return _any_way(dst, src, ByteCount, hStream, _ASYNC)


def _any_way(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    """Copy as the addresses say: what is in no device's arena is the program's memory."""
    me = client()
    context = me.enter()
    to, at = as_int(target), as_int(source)
    if me.in_arena(to) and me.in_arena(at):
        return _move(to, at, size, hStream, flags)
    if me.in_arena(to):
        return _upload(to, at, size, hStream, flags)
    if me.in_arena(at):
        return _download(to, at, size, hStream, flags)
    count = as_int(size)
    require(count >= 0)
    # In the stream's order, and done when this returns: nothing is told to end later.
    me.synchronize(me.make_room(hStream, context))
    if count:
        writable(me, to, count)[:] = readable(me, at, count)
    return OK


def _upload(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.make_room(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        address = as_int(target)
        me.allocations.check_range(address, size)
        if me.landings:
            me.landings.wait_for_range(*extent(source, size))
        data = readable(me, source, size).cast("B")
        for start in range(0, size, PART):
            if start:
                me.make_room(hStream, stream.context)
            part = data[start : start + PART]
            check(me.link.write_from(address + start, stream, flags, part))
        if flags == _SYNC and me.landings:
            me.landings.wait_as_legacy(stream.context)
    return OK


def _download(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.make_room(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        address = as_int(source)
        me.allocations.check_range(address, size)
        out = writable(me, target, size)
        if flags == _ASYNC and len(me.pinned) and me.pinned.holds(*extent(target, size)):
            landing = me.link.read_later(address, size, stream, flags, out)
            me.landings.add(landing, extent(target, size)[0], size, stream)
            return OK
        result = me.link.read_into(address, size, stream, flags, out)
        me.waited(stream.context, result)
    return OK


def _move(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.make_room(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        destination, origin = as_int(target), as_int(source)
        with me.lock:
            me.allocations.check_range(destination, size)
            me.allocations.check_range(origin, size)
            me.link.send(Op.COPY_DTOD, destination, origin, stream.handle, size, flags, lane=stream)
    return OK
