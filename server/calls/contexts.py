"""Contexts: primary ones by device, others by handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ReplayDiverged
from outlast.server.calls.modules import forget_image
from outlast.server.calls.registry import Args, Imposed, answered, one_way, query
from outlast.session import wire
from outlast.session.handles import Handle, HandleKind
from outlast.session.ids import primary_context
from outlast.session.operations import Op
from outlast.session.schema import ReplyKind

if TYPE_CHECKING:
    from outlast.server.executor import Executor

INVALID_CONTEXT = 201
#: Of a context's recipe: handles of the contexts whose memory it may use.
PEERS = "peers"
#: Of a context's recipe: what was set, by the number of the limit.
LIMITS = "limits"


@one_way(Op.PRIMARY_RETAIN)
def primary_retain(ex: Executor, args: Args, data: Any) -> int:
    """Retain a device's primary context; its handle is a constant."""
    device = args[0]
    result, real = ex.cuda.cuDevicePrimaryCtxRetain(device)
    if result:
        return int(result)
    ex.retains[device] = ex.retains.get(device, 0) + 1
    handle = primary_context(device)
    if handle not in ex.handles:
        recipe = {"device": device, "primary": True}
        ex.add_handle(HandleKind.CONTEXT, handle, int(real), recipe)
    return 0


@one_way(Op.PRIMARY_RELEASE)
def primary_release(ex: Executor, args: Args, data: Any) -> int:
    """Give one retain back; the last one destroys what the context owns."""
    device = args[0]
    (result,) = ex.cuda.cuDevicePrimaryCtxRelease(device)
    if result:
        return int(result)
    ex.retains[device] -= 1
    if not ex.retains[device]:
        _forget(ex, primary_context(device))
    return 0


@one_way(Op.PRIMARY_RESET)
def primary_reset(ex: Executor, args: Args, data: Any) -> int:
    """Destroy what a primary context owns; retains stay."""
    device = args[0]
    (result,) = ex.cuda.cuDevicePrimaryCtxReset(device)
    if result:
        return int(result)
    handle = primary_context(device)
    _forget(ex, handle)
    if ex.retains.get(device):
        real = ex.cuda.cuDevicePrimaryCtxRetain(device)[1]
        ex.cuda.cuDevicePrimaryCtxRelease(device)
        ex.add_handle(HandleKind.CONTEXT, handle, int(real), {"device": device, "primary": True})
    return 0


@answered(Op.CTX_CREATE)
def ctx_create(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Create a context."""
    handle, device, flags = args
    result, real = create_context(ex, device, flags)
    if result == 0:
        ex.add_handle(HandleKind.CONTEXT, handle, real, {"device": device, "flags": flags})
    elif imposed is not None:
        raise ReplayDiverged(f"context {handle:#x} cannot be made again: error {result}")
    if imposed is None:
        ex.answer(result)
    ex.rebind()


@one_way(Op.CTX_DESTROY)
def ctx_destroy(ex: Executor, args: Args, data: Any) -> int:
    """Destroy a context with all it owns."""
    context = ex.handles.get(HandleKind.CONTEXT, args[0])
    if context is None:
        return INVALID_CONTEXT
    (result,) = ex.cuda.cuCtxDestroy(context.real)
    if not result:
        _forget(ex, context.id)
    ex.rebind()
    return int(result)


@answered(Op.PEER_ENABLE)
def peer_enable(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Let the bound context use another one's memory; that is part of its recipe."""
    context = ex.handles.get(HandleKind.CONTEXT, ex.context)
    peer = ex.handles.get(HandleKind.CONTEXT, args[0])
    result = INVALID_CONTEXT
    if context is not None and peer is not None:
        result = int(ex.cuda.cuCtxEnablePeerAccess(peer.real, 0)[0])
        if result == 0:
            # A list of its own: an epoch that is being written has the one before.
            context.recipe[PEERS] = [*context.recipe.get(PEERS, ()), peer.id]
    if imposed is None:
        ex.answer(result)
    elif result:
        raise ReplayDiverged(f"context {args[0]:#x} gives no access again: error {result}")


@one_way(Op.PEER_DISABLE)
def peer_disable(ex: Executor, args: Args, data: Any) -> int:
    """Take that back."""
    context = ex.handles.get(HandleKind.CONTEXT, ex.context)
    peer = ex.handles.get(HandleKind.CONTEXT, args[0])
    if context is None or peer is None:
        return INVALID_CONTEXT
    result = int(ex.cuda.cuCtxDisablePeerAccess(peer.real)[0])
    _forget_peer(context, peer.id)
    return result


@answered(Op.CTX_SET_LIMIT)
def ctx_set_limit(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Set a limit of the bound context; it is part of its recipe."""
    limit, value = args
    context = ex.handles.get(HandleKind.CONTEXT, ex.context)
    result, now = INVALID_CONTEXT, 0
    if context is not None:
        result = int(ex.cuda.cuCtxSetLimit(limit, value)[0])
        if result == 0:
            now = int(ex.cuda.cuCtxGetLimit(limit)[1])
            limits = {**context.recipe.get(LIMITS, {}), str(limit): value}
            # A recipe of its own: an epoch that is being written has the one before.
            context.recipe = {**context.recipe, LIMITS: limits}
    if imposed is None:
        ex.answer(result, now)
    elif result:
        raise ReplayDiverged(f"limit {limit} cannot be set again: error {result}")


@query(Op.CTX_GET_LIMIT)
def ctx_get_limit(ex: Executor, args: Args) -> tuple[int, bytes]:
    """Return a limit of the bound context."""
    result, value = ex.cuda.cuCtxGetLimit(args[1])
    return int(result), b"" if result else wire.pack_fields(Op.CTX_GET_LIMIT, int(value))


@query(Op.CTX_SYNC)
def ctx_sync(ex: Executor, args: Args) -> None:
    """Answer when all work issued so far is done."""
    ex.wait_for(ex.driver.ticket(), ReplyKind.ANSWER, args[0])


def create_context(ex: Executor, device: int, flags: int) -> tuple[int, int]:
    """Create a context on the device; return ``(result, real handle)``."""
    result, real = ex.cuda.cuCtxCreate(None, flags, device)
    return int(result), int(real) if not result else 0


def restore_context(ex: Executor, handle: Handle, retains: int) -> int:
    """Make a context of a manifest again; return its real handle, 0 on failure."""
    real = _make_again(ex, handle, retains)
    limits = handle.recipe.get(LIMITS, {})
    if limits and real:
        ex.cuda.cuCtxSetCurrent(real)
        if any(ex.cuda.cuCtxSetLimit(int(limit), value)[0] for limit, value in limits.items()):
            return 0
    return real


def _make_again(ex: Executor, handle: Handle, retains: int) -> int:
    device = handle.recipe["device"]
    if not handle.recipe.get("primary"):
        return create_context(ex, device, handle.recipe["flags"])[1]
    real = 0
    for _ in range(max(1, retains)):
        result, real = ex.cuda.cuDevicePrimaryCtxRetain(device)
        if result:
            return 0
    ex.retains[device] = retains
    return int(real)


def restore_peers(ex: Executor, context: Handle) -> int:
    """Let a context that was made again use the memory of others; return a ``CUresult`` value."""
    result = 0
    ex.cuda.cuCtxSetCurrent(context.real)
    for peer in context.recipe.get(PEERS, ()):
        real = ex.handles.real[HandleKind.CONTEXT][peer]
        result = result or int(ex.cuda.cuCtxEnablePeerAccess(real, 0)[0])
    return result


def _forget(ex: Executor, context: int) -> None:
    removed = ex.drop_handle(context)
    for digest in {gone.recipe["image"] for gone in removed if "image" in gone.recipe}:
        forget_image(ex, digest)
    for other in ex.handles.ordered():
        _forget_peer(other, context)
    for allocation in [a for a in ex.allocations.values() if a.context == context]:
        ex.forget_allocation(allocation.address)


def _forget_peer(context: Handle, peer: int) -> None:
    peers = context.recipe.get(PEERS, ())
    if peer in peers:
        context.recipe[PEERS] = [other for other in peers if other != peer]
