"""Calls about the memory of other devices.

All memory of an arena is mapped by us, and CUDA's own call does nothing for such memory: what a
device may use is said of each chunk. So a context that is let use another one's memory may use
all of that device's arena, chunks to come too. CUDA's call is made as well, for what is not in
the arena: module variables.
"""

from __future__ import annotations

from outlast.server.drivers.cuda.objects import (
    INVALID_CONTEXT,
    INVALID_VALUE,
    PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
    Context,
    Device,
)
from outlast.server.drivers.cuda.state import DriverState

_DONE = (0, PEER_ACCESS_ALREADY_ENABLED)


class PeerCalls(DriverState):
    """Which contexts may use the memory of which others."""

    def cuCtxEnablePeerAccess(self, peerContext: int, Flags: int = 0) -> tuple[int]:
        """Let the current context use the memory of another context's device."""
        context, peer = self._current, self._contexts.get(int(peerContext))
        if context is None or peer is None or peer is context:
            return (INVALID_CONTEXT,)
        if Flags:
            return (INVALID_VALUE,)
        if peer.device is context.device:
            return (PEER_ACCESS_UNSUPPORTED,)
        if peer in context.peers:
            return (PEER_ACCESS_ALREADY_ENABLED,)
        error = int(self.cuda.cuCtxEnablePeerAccess(peer.handle, 0)[0])
        if error not in _DONE:
            return (self.failed(error),)
        if not self._pairs(context.device, peer.device):
            with self.within(self._open(peer.device)):
                error = peer.device.arena.admit(context.device.info.ordinal)
            if error:
                self.cuda.cuCtxDisablePeerAccess(peer.handle)
                return (self.failed(error),)
        context.peers.add(peer)
        return (0,)

    def cuCtxDisablePeerAccess(self, peerContext: int) -> tuple[int]:
        """Take that back."""
        context, peer = self._current, self._contexts.get(int(peerContext))
        if context is None or peer is None or peer is context:
            return (INVALID_CONTEXT,)
        if peer not in context.peers:
            return (PEER_ACCESS_NOT_ENABLED,)
        self._part(context, peer)
        return (self._expel(),)

    def _pairs(self, user: Device, owner: Device) -> int:
        """Return how many pairs of contexts let a device use another one's memory."""
        return sum(
            peer.device is owner
            for context in self._contexts.values()
            if context.device is user
            for peer in context.peers
        )

    def _part(self, context: Context, peer: Context) -> None:
        context.peers.remove(peer)
        # What was issued so far may use the memory still: a replay does not wait where the program
        # has waited.
        self._parting.append((self.timeline.fence(), context, peer))

    def _expel(self) -> int:
        """Take away what nothing uses any more; return a ``CUresult`` value."""
        code, left = 0, []
        for ticket, context, peer in self._parting:
            if not self.timeline.done(ticket):
                left.append((ticket, context, peer))
            elif peer not in context.peers:
                code = code or self._take_away(context, peer)
        self._parting = left
        return code

    def _take_away(self, context: Context, peer: Context) -> int:
        error = 0
        if context.alive and peer.alive:
            with self.within(context):
                error = int(self.cuda.cuCtxDisablePeerAccess(peer.handle)[0])
        if error == PEER_ACCESS_NOT_ENABLED:
            error = 0
        if not self._pairs(context.device, peer.device):
            with self.within(self._open(peer.device)):
                error = error or peer.device.arena.expel(context.device.info.ordinal)
        return self.failed(error) if error else 0

    def _leave_peers(self, context: Context) -> None:
        """Let a context that is destroyed use no memory, and nobody use its own."""
        for peer in list(context.peers):
            self._part(context, peer)
        for other in self._contexts.values():
            if context in other.peers:
                self._part(other, context)
        self._expel()
