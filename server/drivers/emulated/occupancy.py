"""How many blocks of a kernel a multiprocessor would run at once, by what it has of everything."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUfunction_attribute, CUoccupancy_flags
from outlast.server.drivers.emulated.modules import ModuleCalls
from outlast.server.drivers.emulated.objects import Function
from outlast.server.drivers.emulated.properties import (
    MAX_BLOCKS,
    MAX_RESIDENT,
    REGISTERS,
    SHARED_OPTIN,
    SHARED_RESERVED,
    WARP,
)
from outlast.server.drivers.emulated.results import INVALID_VALUE, Refusal, cuda_call, number

_SHARED_UNIT = 128  # bytes
_REGISTER_UNIT = 256  # registers of a warp


def blocks(function: Function, block_size: int, shared: int) -> int:
    """Return how many blocks of so many threads run at once; 0 if none can."""
    if block_size > function.max_threads or shared > function.dynamic_limit:
        return 0
    warps = -(-block_size // WARP)
    registers = function.attributes[CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS] * WARP
    limits = (
        MAX_BLOCKS,
        MAX_RESIDENT // (warps * WARP),
        REGISTERS // (warps * _rounded(registers, _REGISTER_UNIT)),
        (SHARED_OPTIN + SHARED_RESERVED)
        // (_rounded(function.shared_size + shared, _SHARED_UNIT) + SHARED_RESERVED),
    )
    return min(limits)


def shared_of(function: Function, count: int) -> int:
    """Return how much dynamic shared memory each of ``count`` blocks may have.

    It is no more than the kernel may be launched with as it is (an H200 says so too).
    """
    each = (SHARED_OPTIN + SHARED_RESERVED) // count // _SHARED_UNIT * _SHARED_UNIT
    there = min(each - SHARED_RESERVED, SHARED_OPTIN) - function.shared_size
    return max(0, min(there, function.dynamic_limit))


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class OccupancyCalls(ModuleCalls):
    """Questions about how many blocks fit."""

    @cuda_call(1)
    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, func: Any, blockSize: Any, dynamicSMemSize: Any
    ) -> int:
        """Return how many blocks of a kernel run on a multiprocessor at once."""
        return self._blocks(func, blockSize, dynamicSMemSize)

    @cuda_call(1)
    def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        self, func: Any, blockSize: Any, dynamicSMemSize: Any, flags: Any
    ) -> int:
        """Return how many blocks of a kernel run on a multiprocessor at once."""
        if number(flags) not in list(CUoccupancy_flags):
            raise Refusal(INVALID_VALUE)
        return self._blocks(func, blockSize, dynamicSMemSize)

    @cuda_call(1)
    def cuOccupancyAvailableDynamicSMemPerBlock(
        self, func: Any, numBlocks: Any, blockSize: Any
    ) -> int:
        """Return how much dynamic shared memory each of so many blocks may have."""
        function, count, threads = self._function(func), number(numBlocks), number(blockSize)
        if count <= 0 or not 0 < threads <= function.max_threads:
            raise Refusal(INVALID_VALUE)
        return shared_of(function, count)

    def occupancy(self, function: int, block_size: int, shared: int, flags: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and how many blocks run on a multiprocessor at once."""
        result, count = self.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            function, block_size, shared, flags
        )
        return int(result), count or 0

    def available_shared(self, function: int, blocks: int, block_size: int) -> tuple[int, int]:
        """Return a ``CUresult`` value and the bytes that each of so many blocks may have."""
        result, size = self.cuOccupancyAvailableDynamicSMemPerBlock(function, blocks, block_size)
        return int(result), size or 0

    def _blocks(self, func: Any, block_size: Any, shared: Any) -> int:
        function, threads, size = self._function(func), number(block_size), number(shared)
        if threads <= 0 or size < 0:
            raise Refusal(INVALID_VALUE)
        return blocks(function, threads, size)
