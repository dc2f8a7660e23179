"""What is made of code or asked of kernels without giving the device work: links, occupancy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from outlast.server.drivers.base import Shape
from outlast.server.drivers.cuda.modules import ModuleCalls
from outlast.server.drivers.cuda.objects import INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE
from outlast.session.link_inputs import LinkInput


class QueryCalls(ModuleCalls):
    """Links, occupancy, and launches of kernels whose blocks wait for each other."""

    def link(self, inputs: Sequence[LinkInput]) -> tuple[int, bytes]:
        """Return a ``CUresult`` value and the machine code that several inputs make together."""
        if self._current is None:
            return INVALID_CONTEXT, b""
        error, state = self.cuda.cuLinkCreate(0, [], [])
        if error:
            return self.failed(int(error)), b""
        try:
            return self._link(state, inputs)
        finally:
            self.cuda.cuLinkDestroy(state)

    def _link(self, state: Any, inputs: Sequence[LinkInput]) -> tuple[int, bytes]:
        for part in inputs:
            try:
                kind = self.cuda.CUjitInputType(part.kind)
            except ValueError:
                return INVALID_VALUE, b""
            name = part.name.encode()
            (error,) = self.cuda.cuLinkAddData(
                state, kind, part.data, len(part.data), name, 0, [], []
            )
            if error:
                return self.failed(int(error)), b""
        error, address, size = self.cuda.cuLinkComplete(state)
        if error:
            return self.failed(int(error)), b""
        return 0, ctypes.string_at(int(address), int(size))

    def occupancy(self, function: int, block_size: int, shared: int, flags: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and how many blocks run on a multiprocessor at once."""
        kernel = self._functions.get(function)
        if kernel is None:
            return INVALID_HANDLE, 0
        error, count = self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            kernel.raw, block_size, shared, flags
        )
        return (self.failed(int(error)), 0) if error else (0, int(count))

    def available_shared(self, function: int, blocks: int, block_size: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and the bytes that each of so many blocks may have."""
        kernel = self._functions.get(function)
        if kernel is None:
            return INVALID_HANDLE, 0
        error, size = self.cuda.cuOccupancyAvailableDynamicSMemPerBlock(
            kernel.raw, blocks, block_size
        )
        return (self.failed(int(error)), 0) if error else (0, int(size))

    def launch_cooperative(
        self, function: int, stream: int, shape: Shape, parameters: bytes | memoryview
    ) -> int:
        """Launch a kernel whose blocks all run at once."""
        kernel, target = self._functions.get(function), self._streams.get(stream)
        if kernel is None or target is None:
            return INVALID_HANDLE
        if len(parameters) < kernel.size:
            return INVALID_VALUE
        if target.epoch != self.timeline.epoch:
            self.timeline.attend(target)
        if kernel.size:
            kernel.buffer[:] = parameters[: kernel.size]
        (error,) = self.cuda.cuLaunchCooperativeKernel(
            kernel.raw, *shape, target.raw, kernel.pointers
        )
        if error:
            return self.failed(int(error))
        self._work_tag = self.tag
        if not target.dirty:
            self.timeline.issued(target)
        return 0
