"""The emulated device under the names of `cuda.bindings.driver`, for the cuda device to drive.

It does everything in the order of issue, so what overtakes what on a GPU does not show here.
"""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUdevice_P2PAttribute, CUfunction_attribute
from outlast.server.drivers.emulated import EmulatedDriver

INVALID_VALUE = 1


class EmulatedBindings(EmulatedDriver):
    """What `CudaDriver` uses of the bindings and the emulated device does not have."""

    CUstream = int
    CUevent = int
    CUdevice_P2PAttribute = CUdevice_P2PAttribute
    CUfunction_attribute = CUfunction_attribute

    def cuFuncLoad(self, function: int) -> tuple[int]:
        """Load a kernel: it is loaded."""
        return (0,)

    def cuFuncGetName(self, function: int) -> tuple[int, bytes]:
        """Return a kernel's name."""
        return 0, self._function(function).name.encode()

    def cuFuncGetParamInfo(self, function: int, index: int) -> tuple[int, int, int]:
        """Return offset and size of a kernel's parameter."""
        parameters = self._function(function).parameters
        if index >= len(parameters):
            return INVALID_VALUE, 0, 0
        return 0, parameters[index].offset, parameters[index].size

    def cuModuleGetFunctionCount(self, module: int) -> tuple[int, int]:
        """Return how many kernels a module has."""
        return 0, len(self._module(module).functions)

    def cuModuleEnumerateFunctions(self, count: int, module: int) -> tuple[int, list[int]]:
        """Return a module's kernels."""
        return 0, [function.handle for function in self._module(module).functions.values()]

    def cuMemcpyPeerAsync(
        self, target: int, owner: int, source: int, origin: int, size: int, stream: int
    ) -> tuple[Any, ...]:
        """Copy from device to device."""
        return self.cuMemcpyDtoDAsync(target, source, size, stream)

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[int]:
        """Let the device use host memory: it can anyway."""
        return (0,)

    def cuMemHostUnregister(self, address: int) -> tuple[int]:
        """Take that back."""
        return (0,)
