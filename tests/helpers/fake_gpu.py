"""As much of `cuda.bindings.driver` as launches and waits need: calls that do next to nothing.

For what stands in front of the device: tests of it, and benchmarks of what it costs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from outlast import cuda_types
from outlast.server.drivers.emulated import vmm

CONTEXT, MODULE, FUNCTION = 0x100, 0x200, 0x300
GRANULARITY = 2 << 20
_DONE = (0,)


def _done(*_: Any) -> tuple[int]:
    """Do nothing, with success."""
    return _DONE


class FakeGpu:
    """One GPU with one kernel, `empty`, of one pointer; all work is done at once."""

    CUstream = int
    CUevent = int
    CUdevice_attribute = cuda_types.CUdevice_attribute
    CUfunction_attribute = cuda_types.CUfunction_attribute
    CUmemAccessDesc = vmm.CUmemAccessDesc
    CUmemAccess_flags = cuda_types.CUmemAccess_flags
    CUmemAllocationGranularity_flags = cuda_types.CUmemAllocationGranularity_flags
    CUmemAllocationHandleType = cuda_types.CUmemAllocationHandleType
    CUmemAllocationProp = vmm.CUmemAllocationProp
    CUmemAllocationType = cuda_types.CUmemAllocationType
    CUmemLocation = vmm.CUmemLocation
    CUmemLocationType = cuda_types.CUmemLocationType

    cuLaunchKernel = cuEventRecord = cuEventQuery = cuStreamWaitEvent = staticmethod(_done)
    cuInit = cuCtxSetCurrent = cuCtxSynchronize = cuCtxPushCurrent = staticmethod(_done)
    cuMemsetD8Async = cuMemsetD16Async = cuMemsetD32Async = staticmethod(_done)
    cuMemcpyDtoDAsync = cuMemFree = cuMemAddressFree = cuFuncLoad = staticmethod(_done)
    cuStreamDestroy = cuModuleUnload = cuMemHostRegister = staticmethod(_done)
    cuMemHostUnregister = staticmethod(_done)
    cuDevicePrimaryCtxRelease = cuCtxDestroy = cuEventDestroy = staticmethod(_done)
    cuMemMap = cuMemSetAccess = cuMemUnmap = cuMemRelease = staticmethod(_done)

    def __init__(self) -> None:
        self._last = 0x1000
        #: The context that was made last.
        self.made = 0

    def _new(self, *_: Any) -> tuple[int, int]:
        self._last += 16
        return 0, self._last

    cuStreamCreateWithPriority = cuEventCreate = cuMemAlloc = cuMemCreate = _new

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetName(self, length: int, device: int) -> tuple[int, bytes]:
        return 0, b"Fake GPU"

    def cuDeviceGetUuid(self, device: int) -> tuple[int, Any]:
        return 0, SimpleNamespace(bytes=bytes(16))

    def cuDeviceTotalMem(self, device: int) -> tuple[int, int]:
        return 0, 1 << 37

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return 0, 1024

    def cuMemGetAllocationGranularity(self, properties: Any, option: Any) -> tuple[int, int]:
        return 0, GRANULARITY

    def cuMemAddressReserve(self, size: int, step: int, at: int, flags: int) -> tuple[int, int]:
        return 0, at

    def cuDevicePrimaryCtxRetain(self, ordinal: int) -> tuple[int, int]:
        return 0, CONTEXT

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, CONTEXT

    def cuCtxCreate(self, parameters: Any, flags: int, ordinal: int) -> tuple[int, int]:
        self.made = self._new()[1]
        return 0, self.made

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        return 0, MODULE

    cuModuleGetFunction = _new

    def cuModuleGetFunctionCount(self, module: int) -> tuple[int, int]:
        return 0, 1

    def cuModuleEnumerateFunctions(self, count: int, module: int) -> tuple[int, list[int]]:
        return 0, [FUNCTION]

    def cuFuncGetName(self, function: int) -> tuple[int, bytes]:
        return 0, b"empty"

    def cuFuncGetParamInfo(self, function: int, index: int) -> tuple[int, int, int]:
        return (0, 0, 8) if not index else (1, 0, 0)

    def cuFuncGetAttribute(self, attribute: int, function: int) -> tuple[int, int]:
        return 0, 1024
