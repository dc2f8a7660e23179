"""Launches with attributes, and those whose blocks wait for each other."""

from __future__ import annotations

import operator
from typing import Any

from outlast.cuda_types import CUdevice_attribute, CUlaunchAttributeID, CUresult
from outlast.session.operations import Op
from outlast.shim.api.launch import (
    Size,
    check_configuration,
    cuLaunchKernel,
    packer,
    parameters_of,
    record_head,
)
from outlast.shim.api.occupancy import active_blocks
from outlast.shim.call import OK, api, client
from outlast.shim.client import Client
from outlast.shim.failure import require
from outlast.shim.handles import as_int
from outlast.shim.libraries import any_function
from outlast.shim.parameters import NEEDS_CONVERSION, convert

__all__ = [
    "cuLaunchCooperativeKernel",
    "cuLaunchKernelEx",
]

_ID = CUlaunchAttributeID
#: Attributes that only say how a launch may be made faster.
_HINTS = frozenset(
    {
        _ID.CU_LAUNCH_ATTRIBUTE_IGNORE,
        _ID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        _ID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
        _ID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        _ID.CU_LAUNCH_ATTRIBUTE_PRIORITY,
        _ID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
        _ID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        _ID.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        _ID.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    }
)
_NOT_SUPPORTED = CUresult.CUDA_ERROR_NOT_SUPPORTED


@api()
def cuLaunchKernelEx(config: Any, f: Any, kernelParams: Any, extra: Any) -> tuple[CUresult]:
    """Launch a kernel; of its attributes, those that change what it does are refused."""
    me = client()
    require(config is not None and config != 0)
    size = (config.gridDimX, config.gridDimY, config.gridDimZ)
    block = (config.blockDimX, config.blockDimY, config.blockDimZ)
    shared, stream = config.sharedMemBytes, config.hStream
    count = as_int(config.numAttrs)
    attributes = list(config.attrs or ())
    require(0 <= count <= len(attributes))
    if _is_cooperative(attributes[:count]):
        require(not extra)
        return _cooperate(me, f, size, block, shared, stream, kernelParams)
    return cuLaunchKernel(f, *size, *block, shared, stream, kernelParams, extra)


@api()
def cuLaunchCooperativeKernel(
    f: Any,
    gridDimX: int,
    gridDimY: int,
    gridDimZ: int,
    blockDimX: int,
    blockDimY: int,
    blockDimZ: int,
    sharedMemBytes: int,
    hStream: Any,
    kernelParams: Any,
) -> tuple[CUresult]:
    """Launch a kernel whose blocks may wait for each other."""
    grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
    return _cooperate(client(), f, grid, block, sharedMemBytes, hStream, kernelParams)


def _is_cooperative(attributes: list[Any]) -> bool:
    """Return whether a launch is cooperative; refuse attributes that mean anything else."""
    cooperative = False
    for attribute in attributes:
        number, value = as_int(attribute.id), attribute.value
        if number == _ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            cooperative = bool(as_int(getattr(value, "cooperative", value)))
        elif number == _ID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            cluster = getattr(value, "clusterDim", value)
            require((cluster.x, cluster.y, cluster.z) == (1, 1, 1), _NOT_SUPPORTED)
        else:
            require(number in _HINTS, _NOT_SUPPORTED)
    return cooperative


def _cooperate(
    me: Client, f: Any, grid: Size, block: Size, shared: int, hStream: Any, kernelParams: Any
) -> tuple[CUresult]:
    context = me.enter()
    gx, gy, gz, bx, by, bz, size = map(operator.index, (*grid, *block, shared))
    function = any_function(me, f)
    check_configuration(function, (gx, gy, gz), (bx, by, bz), size)
    name = CUdevice_attribute
    able, processors = context.device.limits(
        name.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, name.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    )
    require(able, _NOT_SUPPORTED)
    fitting = active_blocks(me, function, bx * by * bz, size) * processors
    require(gx * gy * gz <= fitting, CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    values, types = parameters_of(me, kernelParams, 0)
    pack = packer(function, types)
    try:
        data = pack(*values)
    except NEEDS_CONVERSION:
        data = pack(*convert(types, values))
    stream = me.make_room(hStream, context)
    with me.lock:
        me.functions.get(function.handle)
        require(function.context is stream.context, CUresult.CUDA_ERROR_INVALID_HANDLE)
        head = record_head(
            function, stream, (gx, gy, gz), (bx, by, bz), size, Op.LAUNCH_COOPERATIVE
        )
        me.link.send_record(head + data, stream)
    if me.launch_blocking:
        me.synchronize(stream)
    return OK
