"""How many blocks of a kernel fit; asked once for each kernel, block and shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from outlast.cuda_types import CUdevice_attribute, CUfunction_attribute, CUoccupancy_flags, CUresult
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.call import SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import as_int
from outlast.shim.libraries import any_function
from outlast.shim.objects import Function

__all__ = [
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
]

_DEFAULT = int(CUoccupancy_flags.CU_OCCUPANCY_DEFAULT)
_FLAGS = frozenset(map(int, CUoccupancy_flags))
_INT = 1 << 31


@api(outputs=1)
def cuOccupancyMaxActiveBlocksPerMultiprocessor(
    func: Any, blockSize: int, dynamicSMemSize: int
) -> tuple[CUresult, int]:
    """Return how many blocks of a kernel run on a multiprocessor at once."""
    me = client()
    me.enter()
    return SUCCESS, active_blocks(me, any_function(me, func), blockSize, dynamicSMemSize)


@api(outputs=1)
def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    func: Any, blockSize: int, dynamicSMemSize: int, flags: int
) -> tuple[CUresult, int]:
    """Return how many blocks of a kernel run on a multiprocessor at once."""
    me = client()
    me.enter()
    function = any_function(me, func)
    return SUCCESS, active_blocks(me, function, blockSize, dynamicSMemSize, as_int(flags))


@api(outputs=1)
def cuOccupancyAvailableDynamicSMemPerBlock(
    func: Any, numBlocks: int, blockSize: int
) -> tuple[CUresult, int]:
    """Return how much dynamic shared memory each of so many blocks may have."""
    me = client()
    me.enter()
    function = any_function(me, func)
    require(0 < numBlocks < _INT and 0 < blockSize < _INT)
    reply = me.link.query(Op.OCCUPANCY_SHARED, function.handle, int(blockSize), int(numBlocks))
    check(reply.result)
    return SUCCESS, unpack_reply(Op.OCCUPANCY_SHARED, reply.data)[0]


@api(outputs=2)
def cuOccupancyMaxPotentialBlockSize(
    func: Any, blockSizeToDynamicSMemSize: Any, dynamicSMemSize: int, blockSizeLimit: int
) -> tuple[CUresult, int, int]:
    """Return the least grid, and the block size, that fill a device best."""
    return _potential(func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, _DEFAULT)


@api(outputs=2)
def cuOccupancyMaxPotentialBlockSizeWithFlags(
    func: Any,
    blockSizeToDynamicSMemSize: Any,
    dynamicSMemSize: int,
    blockSizeLimit: int,
    flags: int,
) -> tuple[CUresult, int, int]:
    """Return the least grid, and the block size, that fill a device best."""
    return _potential(
        func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, as_int(flags)
    )


@api(outputs=1)
def cuOccupancyMaxActiveClusters(func: Any, config: Any) -> tuple[CUresult, int]:
    """Fail: launches in clusters of blocks are not supported."""
    return _no_clusters(func)


@api(outputs=1)
def cuOccupancyMaxPotentialClusterSize(func: Any, config: Any) -> tuple[CUresult, int]:
    """Fail: launches in clusters of blocks are not supported."""
    return _no_clusters(func)


def _no_clusters(func: Any) -> tuple[CUresult, int]:
    me = client()
    me.enter()
    any_function(me, func)
    raise CallFailure(CUresult.CUDA_ERROR_NOT_SUPPORTED)


def active_blocks(
    me: Client, function: Function, block_size: int, shared: int, flags: int = _DEFAULT
) -> int:
    """Return how many blocks run on a multiprocessor at once."""
    require(0 < block_size < _INT and 0 <= shared < _INT and flags in _FLAGS)
    key = (int(block_size), int(shared), flags)
    found = function.occupancy.get(key)
    if found is None:
        size, dynamic, _ = key
        reply = me.link.query(Op.OCCUPANCY, function.handle, size, flags, dynamic)
        check(reply.result)
        found = function.occupancy[key] = unpack_reply(Op.OCCUPANCY, reply.data)[0]
    return found


def _potential(
    func: Any, shared_of_block: Any, shared: int, limit: int, flags: int
) -> tuple[CUresult, int, int]:
    """Try each number of whole warps, the most threads first."""
    me = client()
    context = me.enter()
    function = any_function(me, func)
    require(shared >= 0 and limit >= 0)
    name = CUdevice_attribute
    warp, processors, most = context.device.limits(
        name.CU_DEVICE_ATTRIBUTE_WARP_SIZE,
        name.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        name.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    )
    warp = warp or 32
    allowed = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    most = min(most, function.attributes.get(allowed, most), limit or most)
    size_of = _function_of_block(shared_of_block, shared)
    best = best_size = blocks = 0
    for whole in range(-(-most // warp), 0, -1):
        size = min(whole * warp, most)
        count = active_blocks(me, function, size, size_of(size), flags)
        if count * size > best:
            best, best_size, blocks = count * size, size, count
    return SUCCESS, blocks * processors, best_size


def _function_of_block(given: Any, shared: int) -> Callable[[int], int]:
    """Return the shared memory by block size: a Python function, one at an address, or none."""
    if callable(given):
        return lambda size: int(given(size))
    address = as_int(given)
    if not address:
        return lambda _: shared
    return ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(address)
