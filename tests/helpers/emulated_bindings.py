"""The emulated device under the names of `cuda.bindings.driver`, for the cuda device to drive.

It does everything in the order of issue, so what overtakes what on a GPU does not show here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from outlast.cuda_types import (
    CUdevice_P2PAttribute,
    CUfunction_attribute,
    CUjitInputType,
    CUmemorytype,
)
from outlast.server.drivers.base import Rows
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.session.link_inputs import LinkInput
from outlast.shim.copy_shapes import CUDA_MEMCPY2D

INVALID_VALUE = 1


class EmulatedBindings(EmulatedDriver):
    """What `CudaDriver` uses of the bindings and the emulated device does not have."""

    CUstream = int
    CUevent = int
    CUdevice_P2PAttribute = CUdevice_P2PAttribute
    CUfunction_attribute = CUfunction_attribute
    CUdeviceptr = int
    CUjitInputType = CUjitInputType
    CUmemorytype = CUmemorytype
    CUDA_MEMCPY2D = CUDA_MEMCPY2D

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Inputs and image of each link.
        self.links: dict[int, tuple[list[LinkInput], Any]] = {}

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

    def cuLinkCreate(self, count: int, options: Any, values: Any) -> tuple[int, int]:
        """Begin a link."""
        handle = 16 * (len(self.links) + 1)
        self.links[handle] = [], None
        return 0, handle

    def cuLinkAddData(
        self, state: int, kind: Any, data: bytes, size: int, name: bytes, *options: Any
    ) -> tuple[int]:
        """Add an input."""
        assert size == len(data)
        self.links[state][0].append(LinkInput(int(kind), name.decode(), data))
        return (0,)

    def cuLinkComplete(self, state: int) -> tuple[int, int, int]:
        """Link."""
        inputs, _ = self.links[state]
        result, image = self.link(inputs)
        held = ctypes.create_string_buffer(image)
        self.links[state] = inputs, held
        return result, ctypes.addressof(held), len(image)

    def cuLinkDestroy(self, state: int) -> tuple[int]:
        """End a link."""
        del self.links[state]
        return (0,)

    def cuLaunchCooperativeKernel(self, *arguments: Any) -> Any:
        """Launch a kernel whose blocks do not wait for each other."""
        return self.cuLaunchKernel(*arguments)

    def cuMemcpy2DAsync(self, copy: CUDA_MEMCPY2D, stream: int) -> tuple[int]:
        """Copy rows: one command for each."""
        source = copy.srcHost or copy.srcDevice
        target = copy.dstHost or copy.dstDevice
        queue = self._stream(stream)
        for row in range(copy.Height):
            to, at = target + row * copy.dstPitch, source + row * copy.srcPitch
            queue.issued(self.engine.copy(self.tag, to, at, copy.WidthInBytes))
        return (0,)

    def cuMemsetD2D8Async(self, *arguments: int) -> tuple[int]:
        """Fill rows of bytes."""
        return self._fill_each(1, *arguments)

    def cuMemsetD2D16Async(self, *arguments: int) -> tuple[int]:
        """Fill rows of 16-bit values."""
        return self._fill_each(2, *arguments)

    def cuMemsetD2D32Async(self, *arguments: int) -> tuple[int]:
        """Fill rows of 32-bit values."""
        return self._fill_each(4, *arguments)

    def _fill_each(
        self, size: int, address: int, pitch: int, value: int, columns: int, rows: int, stream: int
    ) -> tuple[int]:
        shape = Rows(rows, columns * size, pitch)
        return (self.fill_rows(address, shape, columns, value, size, stream),)
