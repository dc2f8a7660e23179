"""Memory of other devices: who may use it, and copies from device to device."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUdevice_P2PAttribute, CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import as_int
from outlast.shim.objects import Context

__all__ = [
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
]

_ACCESS = CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
#: Flags of a copy: synchronous form; behind everything so far and ahead of what follows.
_ASYNC, _SYNC, _SERIAL = 0, 1, 2


@api(outputs=1)
def cuDeviceCanAccessPeer(dev: Any, peerDev: Any) -> tuple[CUresult, int]:
    """Return whether a device can use another one's memory; its own is no other's."""
    me = client()
    device, peer = me.device(dev), me.device(peerDev)
    return SUCCESS, device.peers.get(peer.ordinal, {}).get(_ACCESS, 0)


@api(outputs=1)
def cuDeviceGetP2PAttribute(
    attrib: CUdevice_P2PAttribute, srcDevice: Any, dstDevice: Any
) -> tuple[CUresult, int]:
    """Return what a device can do with another one's memory."""
    me = client()
    source, target = me.device(srcDevice), me.device(dstDevice)
    require(source is not target, CUresult.CUDA_ERROR_INVALID_DEVICE)
    values = source.peers.get(target.ordinal, {})
    require(int(attrib) in values)
    return SUCCESS, values[int(attrib)]


@api()
def cuCtxEnablePeerAccess(peerContext: Any, Flags: int) -> tuple[CUresult]:
    """Let the current context use the memory of another context's device."""
    me = client()
    context, peer = _pair(me, peerContext)
    require(Flags == 0)
    able = context.device.peers.get(peer.device.ordinal, {}).get(_ACCESS, 0)
    require(able, CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    with me.lock:
        known = peer in context.peers
        context.peers.add(peer)
    require(not known, CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    try:
        check(me.link.call(Op.PEER_ENABLE, peer.handle).result)
    except BaseException:
        with me.lock:
            context.peers.discard(peer)
        raise
    return OK


@api()
def cuCtxDisablePeerAccess(peerContext: Any) -> tuple[CUresult]:
    """Take that back; work that was issued before may use the memory still."""
    me = client()
    context, peer = _pair(me, peerContext)
    with me.lock:
        require(peer in context.peers, CUresult.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
        me.link.send(Op.PEER_DISABLE, peer.handle)
        context.peers.discard(peer)
    return OK


@api()
def cuMemcpyPeer(
    dstDevice: Any, dstContext: Any, srcDevice: Any, srcContext: Any, ByteCount: int
) -> tuple[CUresult]:
    """Copy from one context's memory to another's; no other work runs beside it."""
    return _copy(dstDevice, dstContext, srcDevice, srcContext, ByteCount, 0, _SYNC | _SERIAL)


@api()
def cuMemcpyPeerAsync(
    dstDevice: Any, dstContext: Any, srcDevice: Any, srcContext: Any, ByteCount: int, hStream: Any
) -> tuple[CUresult]:
    """Copy from one context's memory to another's in a stream's order."""
    return _copy(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, _ASYNC)


def _pair(me: Client, handle: Any) -> tuple[Context, Context]:
    """Return the current context and another one, else INVALID_CONTEXT."""
    context, peer = me.enter(), me.named_context(handle)
    if context is peer:
        raise CallFailure(CUresult.CUDA_ERROR_INVALID_CONTEXT)
    return context, peer


def _copy(
    target: Any, owner: Any, source: Any, origin: Any, size: int, hStream: Any, flags: int
) -> tuple[CUresult]:
    me = client()
    stream = me.make_room(hStream, me.enter())
    into, out_of = me.named_context(owner), me.named_context(origin)
    size = as_int(size)
    require(size >= 0)
    if size:
        to, at = as_int(target), as_int(source)
        with me.lock:
            for address, context in ((to, into), (at, out_of)):
                me.allocations.check_range(address, size)
                found = me.allocations.find(address)
                require(found and found.context.device is context.device)
            me.link.send(Op.COPY_DTOD, to, at, stream.handle, size, flags, lane=stream)
        if flags and me.landings:
            me.landings.wait_as_legacy(stream.context)
    return OK
