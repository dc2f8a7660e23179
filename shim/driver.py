"""CUDA driver API of a remote session, named and returning as `cuda.bindings.driver`.

Every function returns a tuple that begins with a `CUresult`; its other values are None
when that is an error. A program changes its import and keeps the rest::

    from outlast.shim import driver

    (result,) = driver.cuInit(0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast.shim import api_types
from outlast.shim.api.context import (
    cuCtxCreate,
    cuCtxDestroy,
    cuCtxGetApiVersion,
    cuCtxGetCurrent,
    cuCtxGetDevice,
    cuCtxGetFlags,
    cuCtxGetStreamPriorityRange,
    cuCtxPopCurrent,
    cuCtxPushCurrent,
    cuCtxSetCurrent,
    cuCtxSynchronize,
)
from outlast.shim.api.copy import (
    cuMemcpyDtoD,
    cuMemcpyDtoDAsync,
    cuMemcpyDtoH,
    cuMemcpyDtoHAsync,
    cuMemcpyHtoD,
    cuMemcpyHtoDAsync,
)
from outlast.shim.api.device import (
    cuDeviceComputeCapability,
    cuDeviceGet,
    cuDeviceGetAttribute,
    cuDeviceGetCount,
    cuDeviceGetName,
    cuDeviceGetUuid,
    cuDeviceTotalMem,
    cuDriverGetVersion,
    cuInit,
)
from outlast.shim.api.error import (
    cuGetErrorName,
    cuGetErrorString,
    last_error,
)
from outlast.shim.api.event import (
    cuEventCreate,
    cuEventDestroy,
    cuEventElapsedTime,
    cuEventQuery,
    cuEventRecord,
    cuEventRecordWithFlags,
    cuEventSynchronize,
)
from outlast.shim.api.host import (
    cuMemAllocHost,
    cuMemFreeHost,
    cuMemHostAlloc,
    cuMemHostGetDevicePointer,
    cuMemHostGetFlags,
    cuMemHostRegister,
    cuMemHostUnregister,
)
from outlast.shim.api.launch import (
    cuLaunchKernel,
)
from outlast.shim.api.memory import (
    cuMemAlloc,
    cuMemFree,
    cuMemGetAddressRange,
    cuMemGetInfo,
)
from outlast.shim.api.memset import (
    cuMemsetD8,
    cuMemsetD8Async,
    cuMemsetD16,
    cuMemsetD16Async,
    cuMemsetD32,
    cuMemsetD32Async,
)
from outlast.shim.api.module import (
    cuFuncGetAttribute,
    cuFuncGetParamInfo,
    cuFuncSetAttribute,
    cuModuleGetFunction,
    cuModuleGetGlobal,
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleLoadFatBinary,
    cuModuleUnload,
)
from outlast.shim.api.ordered_memory import (
    cuMemAllocAsync,
    cuMemAllocFromPoolAsync,
    cuMemFreeAsync,
)
from outlast.shim.api.pointer import (
    cuPointerGetAttribute,
    cuPointerGetAttributes,
)
from outlast.shim.api.pool import (
    cuDeviceGetDefaultMemPool,
    cuDeviceGetMemPool,
    cuDeviceSetMemPool,
    cuMemPoolCreate,
    cuMemPoolDestroy,
    cuMemPoolGetAttribute,
    cuMemPoolSetAttribute,
    cuMemPoolTrimTo,
)
from outlast.shim.api.primary_context import (
    cuDevicePrimaryCtxGetState,
    cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxReset,
    cuDevicePrimaryCtxRetain,
)
from outlast.shim.api.stream import (
    cuStreamCreate,
    cuStreamCreateWithPriority,
    cuStreamDestroy,
    cuStreamGetCtx,
    cuStreamGetFlags,
    cuStreamGetPriority,
    cuStreamIsCapturing,
    cuStreamQuery,
    cuStreamSynchronize,
    cuStreamWaitEvent,
)
from outlast.shim.api_types import *  # noqa: F403
from outlast.shim.linkage import Link
from outlast.shim.process import process

__all__ = [
    "close",
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
    "cuCtxSynchronize",
    "cuDeviceComputeCapability",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceSetMemPool",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncGetParamInfo",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocHost",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemGetAddressRange",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuMemHostGetFlags",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuMemsetD8",
    "cuMemsetD8Async",
    "cuMemsetD16",
    "cuMemsetD16Async",
    "cuMemsetD32",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleGetGlobal",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "last_error",
    "statistics",
    "use_link",
]
__all__ += api_types.__all__


def statistics() -> dict[str, Any]:
    """Return counts of what this process's link went through.

    Returns
    -------
    dict
        ``replayed_calls``, ``reconnects``, and ``stalls_s``: the seconds each lost
        connection kept the session from its server. Empty before `cuInit`.
    """
    return process.client.link.statistics() if process.client is not None else {}


def close(end: bool = False) -> None:
    """Close this process's link; calls made from now on fail.

    Parameters
    ----------
    end : bool
        End the session on the server too.
    """
    if process.client is not None:
        process.client.link.close(end)


def use_link(link: Link | Callable[[], Link] | None) -> None:
    """Make the next `cuInit` use ``link`` instead of the process's own connection.

    Everything made before is invalid from now on.

    Parameters
    ----------
    link : Link | Callable[[], Link] | None
        A link, a function that makes one, or None for the process's own connection again.
    """
    if link is None or callable(link):
        process.use(link)
    else:
        process.use(lambda: link)
