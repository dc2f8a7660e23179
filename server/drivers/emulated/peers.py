"""Calls about the memory of other devices."""

from __future__ import annotations

from typing import Any

from outlast.server.drivers.emulated.objects import Context, Device
from outlast.server.drivers.emulated.results import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
    Refusal,
    cuda_call,
    number,
)
from outlast.server.drivers.emulated.state import DriverState


class PeerCalls(DriverState):
    """Which contexts may use the memory of which others."""

    @cuda_call(1, always=True)
    def cuDeviceCanAccessPeer(self, dev: Any, peerDev: Any) -> int:
        """Return whether a device can use another one's memory."""
        return int(self._device(dev) is not self._device(peerDev))

    @cuda_call(1, always=True)
    def cuDeviceGetP2PAttribute(self, attrib: Any, srcDevice: Any, dstDevice: Any) -> int:
        """Return what a device can do with another one's memory."""
        source, target = self._device(srcDevice), self._device(dstDevice)
        values = source.info.peers.get(target.info.ordinal)
        if values is None:
            raise Refusal(INVALID_DEVICE)
        value = values.get(number(attrib))
        if value is None:
            raise Refusal(INVALID_VALUE)
        return value

    @cuda_call()
    def cuCtxEnablePeerAccess(self, peerContext: Any, Flags: Any = 0) -> None:
        """Let the current context's kernels use the memory of another context's device."""
        context, peer = self._context(), self._peer(peerContext)
        if number(Flags):
            raise Refusal(INVALID_VALUE)
        if peer.device is context.device:
            raise Refusal(PEER_ACCESS_UNSUPPORTED)
        with self.engine.lock:
            if peer in context.peers:
                raise Refusal(PEER_ACCESS_ALREADY_ENABLED)
            if not self._pairs(context.device, peer.device):
                peer.device.arena.admit(context.device.arena)
            context.peers.add(peer)

    @cuda_call()
    def cuCtxDisablePeerAccess(self, peerContext: Any) -> None:
        """Take that back."""
        context, peer = self._context(), self._peer(peerContext)
        with self.engine.lock:
            if peer not in context.peers:
                raise Refusal(PEER_ACCESS_NOT_ENABLED)
            self._part(context, peer)

    def _peer(self, handle: Any) -> Context:
        peer = self._contexts.get(number(handle))
        if peer is None or not peer.alive or peer is self._current.context:
            raise Refusal(INVALID_CONTEXT)
        return peer

    def _pairs(self, user: Device, owner: Device) -> int:
        """Return how many pairs of contexts let a device use another one's memory."""
        return sum(
            peer.device is owner
            for context in self._contexts
            if context.device is user
            for peer in context.peers
        )

    def _part(self, context: Context, peer: Context) -> None:
        context.peers.remove(peer)
        if not self._pairs(context.device, peer.device):
            peer.device.arena.dismiss(context.device.arena)

    def _leave_peers(self, context: Context) -> None:
        """Let a context that is destroyed use no memory, and nobody use its own."""
        for peer in list(context.peers):
            self._part(context, peer)
        for other in self._contexts:
            if context in other.peers:
                self._part(other, context)
