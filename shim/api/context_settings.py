"""What can be set of a context, and of a thread: limits travel, preferences change nothing."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUfunc_cache, CUlimit, CUresult, CUsharedconfig, CUstreamCaptureMode
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import check, require
from outlast.shim.handles import as_int

__all__ = [
    "cuCtxGetCacheConfig",
    "cuCtxGetId",
    "cuCtxGetLimit",
    "cuCtxGetSharedMemConfig",
    "cuCtxResetPersistingL2Cache",
    "cuCtxSetCacheConfig",
    "cuCtxSetLimit",
    "cuCtxSetSharedMemConfig",
    "cuThreadExchangeStreamCaptureMode",
]

_LIMITS = frozenset(map(int, CUlimit)) - {int(CUlimit.CU_LIMIT_MAX)}
_CACHE, _SHARED = "cache", "shared"
_UNSUPPORTED_LIMIT = CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT


@api(outputs=1)
def cuCtxGetLimit(limit: CUlimit) -> tuple[CUresult, int]:
    """Return a limit of the current context; it is asked for once."""
    me = client()
    context, number = me.enter(), as_int(limit)
    require(number in _LIMITS, _UNSUPPORTED_LIMIT)
    if number not in context.limits:
        reply = me.link.query(Op.CTX_GET_LIMIT, number)
        check(reply.result)
        (context.limits[number],) = unpack_reply(Op.CTX_GET_LIMIT, reply.data)
    return SUCCESS, context.limits[number]


@api()
def cuCtxSetLimit(limit: CUlimit, value: int) -> tuple[CUresult]:
    """Set a limit of the current context."""
    me = client()
    context, number, size = me.enter(), as_int(limit), as_int(value)
    require(number in _LIMITS, _UNSUPPORTED_LIMIT)
    require(0 <= size < 1 << 63)
    reply = me.link.call(Op.CTX_SET_LIMIT, number, size)
    check(reply.result)
    context.limits[number] = reply.value
    return OK


@api(outputs=1)
def cuCtxGetCacheConfig() -> tuple[CUresult, CUfunc_cache]:
    """Return what the current context prefers."""
    return SUCCESS, CUfunc_cache(client().context().preferences.get(_CACHE, 0))


@api()
def cuCtxSetCacheConfig(config: CUfunc_cache) -> tuple[CUresult]:
    """Prefer a division of on-chip memory: a wish, which changes nothing here."""
    context = client().context()
    require(as_int(config) in list(CUfunc_cache))
    context.preferences[_CACHE] = as_int(config)
    return OK


@api(outputs=1)
def cuCtxGetSharedMemConfig() -> tuple[CUresult, CUsharedconfig]:
    """Return the width of shared memory's banks: 4 bytes on all devices of today."""
    client().context()
    return SUCCESS, CUsharedconfig.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE


@api()
def cuCtxSetSharedMemConfig(config: CUsharedconfig) -> tuple[CUresult]:
    """Prefer a width of shared memory's banks: no device of today has another."""
    client().context()
    require(as_int(config) in list(CUsharedconfig))
    return OK


@api(outputs=1)
def cuCtxGetId(ctx: Any) -> tuple[CUresult, int]:
    """Return a number that no other context has ever had; NULL is the current one."""
    me = client()
    context = me.named_context(ctx) if as_int(ctx) else me.context()
    return SUCCESS, context.identity


@api()
def cuCtxResetPersistingL2Cache() -> tuple[CUresult]:
    """Make all lines of the cache normal ones: what is kept in it changes no result."""
    client().enter()
    return OK


@api(outputs=1)
def cuThreadExchangeStreamCaptureMode(
    mode: CUstreamCaptureMode,
) -> tuple[CUresult, CUstreamCaptureMode]:
    """Set the calling thread's mode, and return the one before; there is no capture."""
    thread = client().thread
    require(as_int(mode) in list(CUstreamCaptureMode))
    before, thread.capture_mode = thread.capture_mode, CUstreamCaptureMode(as_int(mode))
    return SUCCESS, before
