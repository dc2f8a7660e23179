"""Host functions in streams; see `outlast.shim.host_functions`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from outlast.cuda_types import CUresult
from outlast.shim.call import OK, api, client
from outlast.shim.client import Client
from outlast.shim.failure import as_result, require
from outlast.shim.handles import CUstream, as_int

__all__ = [
    "cuLaunchHostFunc",
    "cuStreamAddCallback",
]

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@api()
def cuLaunchHostFunc(hStream: Any, fn: Any, userData: Any) -> tuple[CUresult]:
    """Have a function (of Python, or at an address) run when a stream gets here.

    It may not call CUDA, and is not run if work before it has failed.
    """
    me = client()
    me.enter()
    function, data = _function(fn, _HOST_FUNCTION, userData)

    def run(result: int) -> None:
        if not result:
            function(data)

    return _add(me, hStream, run)


@api()
def cuStreamAddCallback(hStream: Any, callback: Any, userData: Any, flags: int) -> tuple[CUresult]:
    """Have a function run when a stream gets here, also if work before it has failed."""
    me = client()
    me.enter()
    require(flags == 0)
    function, data = _function(callback, _CALLBACK, userData)
    handle = CUstream(as_int(hStream))

    def run(result: int) -> None:
        function(handle, as_result(result), data)

    return _add(me, hStream, run)


def _add(me: Client, hStream: Any, run: Callable[[int], None]) -> tuple[CUresult]:
    stream = me.stream(hStream, me.enter())
    context = stream.context
    with me.lock:
        own = (context.legacy, *context.thread_streams.values(), *me.streams.of(context))
        me.host_functions.add(stream, run, [other for other in own if other is not stream])
    return OK


def _function(given: Any, kind: Any, data: Any) -> tuple[Callable[..., object], Any]:
    """Return what is called, and its argument, as the function's kind takes it."""
    if callable(given):
        return given, data
    address = as_int(given)
    require(address)
    return kind(address), as_int(data)
