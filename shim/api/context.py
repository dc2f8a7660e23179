"""Contexts and the calling thread's stack of them."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUctx_flags, CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import check, require
from outlast.shim.handles import CUcontext, CUdevice, as_int
from outlast.shim.objects import Context

__all__ = [
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxGetApiVersion",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSetFlags",
    "cuCtxSynchronize",
]

#: What `cuCtxGetApiVersion` says of every context.
API_VERSION = 3020
#: Priorities of streams, least and greatest.
STREAM_PRIORITIES = (0, -5)

_SCHEDULES = (
    CUctx_flags.CU_CTX_SCHED_AUTO,
    CUctx_flags.CU_CTX_SCHED_SPIN,
    CUctx_flags.CU_CTX_SCHED_YIELD,
    CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC,
)


@api(outputs=1)
def cuCtxCreate(ctxCreateParams: Any, flags: int, dev: Any) -> tuple[CUresult, CUcontext]:
    """Create a context and push it on the calling thread's stack."""
    me = client()
    device = me.device(dev)
    require(not ctxCreateParams, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    check_flags(flags)
    check(me.link.sticky())
    context = Context(me.link.new_handle(), device, int(flags))
    check(me.link.call(Op.CTX_CREATE, context.handle, device.ordinal, context.flags).result)
    with me.lock:
        me.contexts[context.handle] = context
    me.thread.push(context)
    return SUCCESS, CUcontext(context.handle)


@api()
def cuCtxDestroy(ctx: Any) -> tuple[CUresult]:
    """Destroy a context and all it owns; if it is current here, pop it."""
    me = client()
    check(me.link.sticky())
    me.host_functions.wait_for_context(me.named_context(ctx))
    if me.landings:
        me.landings.wait_for_context(me.named_context(ctx))
    with me.lock:
        context = me.named_context(ctx)
        require(not context.primary, CUresult.CUDA_ERROR_INVALID_CONTEXT)
        me.link.send(Op.CTX_DESTROY, context.handle)
        context.alive = False
        del me.contexts[context.handle]
        me.drop_objects(context)
    if me.thread.top is context:
        me.thread.pop()
    return OK


@api()
def cuCtxSetCurrent(ctx: Any) -> tuple[CUresult]:
    """Replace the calling thread's current context; NULL pops it."""
    me = client()
    if as_int(ctx):
        me.thread.replace(me.named_context(ctx))
    else:
        me.thread.pop()
    return OK


@api(outputs=1)
def cuCtxGetCurrent() -> tuple[CUresult, CUcontext]:
    """Return the calling thread's current context, NULL if none."""
    top = client().thread.top
    return SUCCESS, CUcontext(top.handle if top else 0)


@api()
def cuCtxPushCurrent(ctx: Any) -> tuple[CUresult]:
    """Push a context on the calling thread's stack."""
    me = client()
    me.thread.push(me.named_context(ctx))
    return OK


@api(outputs=1)
def cuCtxPopCurrent() -> tuple[CUresult, CUcontext]:
    """Pop the calling thread's current context and return it."""
    me = client()
    require(me.thread.top, CUresult.CUDA_ERROR_INVALID_CONTEXT)
    popped = me.thread.pop()
    return SUCCESS, CUcontext(popped.handle if popped else 0)


@api(outputs=1)
def cuCtxGetDevice() -> tuple[CUresult, CUdevice]:
    """Return the device of the current context."""
    return SUCCESS, CUdevice(client().context().device.ordinal)


@api(outputs=1)
def cuCtxGetFlags() -> tuple[CUresult, int]:
    """Return the flags of the current context."""
    return SUCCESS, client().context().flags


@api(outputs=1)
def cuCtxGetApiVersion(ctx: Any) -> tuple[CUresult, int]:
    """Return the API version of a context; NULL is the current one."""
    me = client()
    if as_int(ctx):
        me.named_context(ctx)
    else:
        me.context()
    return SUCCESS, API_VERSION


@api(outputs=2)
def cuCtxGetStreamPriorityRange() -> tuple[CUresult, int, int]:
    """Return the least and the greatest stream priority."""
    client().context()
    return SUCCESS, *STREAM_PRIORITIES


@api()
def cuCtxSynchronize() -> tuple[CUresult]:
    """Wait for all work of the current context."""
    me = client()
    context = me.enter()
    me.host_functions.wait_for_context(context)
    newest = me.link.next_seq - 1
    result = me.link.query(Op.CTX_SYNC).result
    if not result:
        context.done = max(context.done, newest)
    me.waited(context, result)
    return OK


@api()
def cuCtxSetFlags(flags: int) -> tuple[CUresult]:
    """Set the current context's flags; they say how its host threads wait, which is our affair."""
    context = client().context()
    check_flags(flags)
    context.flags = int(flags)
    return OK


def check_flags(flags: int) -> None:
    """Refuse flags that no context has."""
    require(0 <= flags <= CUctx_flags.CU_CTX_FLAGS_MASK)
    require(flags & CUctx_flags.CU_CTX_SCHED_MASK in _SCHEDULES)
