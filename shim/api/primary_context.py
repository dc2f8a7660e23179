"""Primary contexts: one per device, with a handle that never changes."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.api.context import check_flags
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import check, require
from outlast.shim.handles import CUcontext

__all__ = [
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags",
]


@api(outputs=1)
def cuDevicePrimaryCtxRetain(dev: Any) -> tuple[CUresult, CUcontext]:
    """Retain a device's primary context; it is not made current."""
    me = client()
    context = me.primary(dev)
    check(me.link.sticky())
    with me.lock:
        me.link.send(Op.PRIMARY_RETAIN, context.device.ordinal)
        context.retains += 1
        context.alive = True
    return SUCCESS, CUcontext(context.handle)


@api()
def cuDevicePrimaryCtxRelease(dev: Any) -> tuple[CUresult]:
    """Give a retain back; the last one destroys what the context owns."""
    me = client()
    context = me.primary(dev)
    check(me.link.sticky())
    if context.retains == 1:
        me.host_functions.wait_for_context(context)
    if context.retains == 1 and me.landings:
        me.landings.wait_for_context(context)
    with me.lock:
        require(context.retains, CUresult.CUDA_ERROR_INVALID_CONTEXT)
        me.link.send(Op.PRIMARY_RELEASE, context.device.ordinal)
        context.retains -= 1
        if not context.retains:
            context.alive = False
            me.drop_objects(context)
    return OK


@api()
def cuDevicePrimaryCtxReset(dev: Any) -> tuple[CUresult]:
    """Destroy what a primary context owns; its retains stay."""
    me = client()
    context = me.primary(dev)
    check(me.link.sticky())
    me.host_functions.wait_for_context(context)
    if me.landings:
        me.landings.wait_for_context(context)
    with me.lock:
        me.link.send(Op.PRIMARY_RESET, context.device.ordinal)
        me.drop_objects(context)
    return OK


@api(outputs=2)
def cuDevicePrimaryCtxGetState(dev: Any) -> tuple[CUresult, int, int]:
    """Return a primary context's flags and whether it is active."""
    context = client().primary(dev)
    return SUCCESS, context.flags, int(context.alive)


@api()
def cuDevicePrimaryCtxSetFlags(dev: Any, flags: int) -> tuple[CUresult]:
    """Set a primary context's flags; they say how its host threads wait, which is our affair."""
    context = client().primary(dev)
    check_flags(flags)
    context.flags = int(flags)
    return OK
