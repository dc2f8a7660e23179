"""Copies between host and device.

Host-to-device bytes are taken at the call, also from pinned memory, which CUDA reads only
when the stream gets there. That shows no difference as long as nothing that was issued before
can still write there; and nothing can: copies to the host wait for their bytes in the call,
the asynchronous ones into pinned memory too (CUDA promises it for ordinary memory alone), and
no device can reach the program's memory.
"""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.schema import Op
from outlast.shim.call import OK, api, client
from outlast.shim.failure import check, require
from outlast.shim.handles import as_int
from outlast.shim.host_memory import readable, writable

_ASYNC, _SYNC = 0, 1


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


def _upload(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.stream(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        address = as_int(target)
        me.allocations.check_range(address, size)
        data = readable(me, source, size)
        check(me.link.write_from(address, stream.handle, flags, data))
    return OK


def _download(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.stream(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        address = as_int(source)
        me.allocations.check_range(address, size)
        out = writable(me, target, size)
        result = me.link.read_into(address, size, stream.handle, flags, out)
        me.waited(stream.context, result)
    return OK


def _move(target: Any, source: Any, size: int, hStream: Any, flags: int) -> tuple[CUresult]:
    me = client()
    stream = me.stream(hStream, me.enter())
    size = as_int(size)
    require(size >= 0)
    if size:
        destination, origin = as_int(target), as_int(source)
        with me.lock:
            me.allocations.check_range(destination, size)
            me.allocations.check_range(origin, size)
            me.link.send(Op.COPY_DTOD, destination, origin, stream.handle, size, flags)
    return OK
