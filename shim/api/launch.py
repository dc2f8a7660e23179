"""Kernel launches.

A launch is checked once per distinct (function, configuration, stream, parameter types);
the checked form is kept as a `Plan` in its context, so that a repeated launch only packs
its values and appends the record. Destroying a stream, unloading a module or changing a
function's attributes empties the plans.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable
from typing import Any

from outlast.cuda_types import CUdevice_attribute as Attribute
from outlast.cuda_types import CUfunction_attribute, CUresult
from outlast.errors import OutlastError
from outlast.session.operations import Op
from outlast.session.wire import RECORD, RECORDS
from outlast.shim.call import OK, api, client
from outlast.shim.client import PER_THREAD_STREAM, Client
from outlast.shim.failure import CallFailure, as_result, require
from outlast.shim.handles import as_int
from outlast.shim.libraries import any_function
from outlast.shim.objects import Context, Function, Plan, Stream
from outlast.shim.parameters import (
    NEEDS_CONVERSION,
    compile_gatherer,
    compile_packer,
    convert,
    gather_extra,
)
from outlast.shim.process import process

__all__ = [
    "cuLaunchKernel",
]

#: Most plans a context keeps; a program that varies its grids endlessly starts anew.
MAX_PLANS = 4096

Size = tuple[int, int, int]
#: Function, grid, block, shared memory, stream and parameter types, as the program gave them.
Key = tuple[Any, ...]

#: Stand for parameter types when the parameters come in one of C's forms.
_POINTERS = object()
_EXTRA = object()

_FIELDS = RECORDS[Op.LAUNCH].struct
#: No plan, no client, parameters in another form, or values that need conversion or are wrong.
_NOT_PLANNED = (
    KeyError,
    AttributeError,
    TypeError,
    ValueError,
    OverflowError,
    struct.error,
    CallFailure,
)

_GRID_LIMITS = (
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
)
_BLOCK_LIMITS = (
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
    Attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
)


def cuLaunchKernel(
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
    extra: Any,
) -> tuple[CUresult]:
    """Launch a kernel.

    Parameters
    ----------
    f : CUfunction
        The kernel.
    gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ : int
        Blocks of the grid and threads of a block.
    sharedMemBytes : int
        Dynamic shared memory of each block.
    hStream : CUstream
        The stream.
    kernelParams : Any
        ``((value, ...), (ctypes type or None, ...))``, the address of a ``void **``, or 0.
    extra : Any
        Address of a C ``extra`` list, or 0.
    """
    me = process.client
    try:
        values, types = kernelParams
        head, pack, stream = me.thread.plans[  # type: ignore[union-attr]
            f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
            sharedMemBytes, hStream, types,
        ]  # fmt: skip
        record = head + pack(*values)
    except _NOT_PLANNED:
        record = b""
    if not record or extra:
        return _launch(
            f, (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ),
            sharedMemBytes, hStream, kernelParams, extra,
        )  # fmt: skip
    try:
        link = me.link  # type: ignore[union-attr]
        sticky = link.sticky()
        if sticky:
            return (as_result(sticky),)
        if stream.taken >= stream.look_at:
            me.credits.take(stream)  # type: ignore[union-attr]
        link.send_record(record, stream)
    except OutlastError as error:
        return (as_result(process.report(error)),)
    return OK


@api()
def _launch(
    f: Any, grid: Size, block: Size, shared: int, hStream: Any, kernelParams: Any, extra: Any
) -> tuple[CUresult]:
    """Launch what has no plan yet, values that need conversion, and parameters in C's forms."""
    me = client()
    context = me.enter()
    values, types = parameters_of(me, kernelParams, extra)
    key = (f, *grid, *block, shared, hStream, types)
    plan = context.plans.get(key) if _is_key(key) else None
    head, pack, stream = plan or _check(me, context, key, any_function(me, f))
    try:
        data = pack(*values)
    except NEEDS_CONVERSION:
        data = pack(*convert(types, values))
    if stream.taken >= stream.look_at:
        me.credits.take(stream)
    me.link.send_record(head + data, stream)
    if me.launch_blocking:
        me.synchronize(stream)
    return OK


def parameters_of(me: Client, kernelParams: Any, extra: Any) -> tuple[Any, Any]:
    """Return values and types; C's forms are one value, an address, of a type of their own."""
    if isinstance(kernelParams, tuple | list):
        require(not extra)
        if len(kernelParams) == 0:
            return (), ()
        if len(kernelParams) != 2:
            raise TypeError("kernelParams must be (values, types)")
        return kernelParams[0], kernelParams[1]
    pointers, options = as_int(kernelParams), as_int(extra)
    require(not (pointers and options))
    address = pointers or options
    require(address >= 0 and not me.in_arena(address))
    return (address,), _EXTRA if options else _POINTERS


def _check(me: Client, context: Context, key: Key, function: Function) -> Plan:
    """Check a launch in full and keep its plan."""
    hStream, types = key[-2], key[-1]
    gx, gy, gz, bx, by, bz, shared = map(operator.index, key[1:-2])
    grid, block = (gx, gy, gz), (bx, by, bz)
    with me.lock:
        function = me.functions.get(function.handle)
        stream = me.stream(hStream, context)
        require(function.context is stream.context, CUresult.CUDA_ERROR_INVALID_HANDLE)
        check_configuration(function, grid, block, shared)
        head = record_head(function, stream, grid, block, shared)
        plan = head, packer(function, types), stream
        # Whatever may invalidate the plan empties the plans of the function's context.
        if function.context is context and not me.launch_blocking and _is_key(key):
            if len(context.plans) >= MAX_PLANS:
                context.plans.clear()
            context.plans[key] = plan
    return plan


def _is_key(key: Key) -> bool:
    """Return whether a launch may have a plan."""
    f, hStream, types = key[0], key[-2], key[-1]
    # Only what hashes by value can be a key; handle 2 means another stream in each thread.
    by_value = isinstance(f, int) and isinstance(hStream, int) and not isinstance(types, list)
    return by_value and hStream != PER_THREAD_STREAM


def packer(function: Function, types: Any) -> Callable[..., bytes]:
    """Return what makes a function's parameter buffer of values."""
    if types is _POINTERS:
        return compile_gatherer(function.info.parameters)
    if types is _EXTRA:
        return functools.partial(gather_extra, function.parameter_bytes)
    return compile_packer(function.info.parameters, types)


def check_configuration(function: Function, grid: Size, block: Size, shared: int) -> None:
    """Refuse a launch that the device, or the kernel, is too small for."""
    device = function.context.device
    for sizes, limits in ((grid, _GRID_LIMITS), (block, _BLOCK_LIMITS)):
        for size, limit in zip(sizes, device.limits(*limits), strict=True):
            require(0 < size <= limit)
    threads = block[0] * block[1] * block[2]
    require(threads <= device.limits(Attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)[0])
    allowed = function.attributes.get(
        CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, threads
    )
    require(threads <= allowed)
    require(0 <= shared <= _shared_limit(function))


def _shared_limit(function: Function) -> int:
    """Return how much dynamic shared memory a launch may ask for."""
    name = CUfunction_attribute
    dynamic = function.attributes.get(name.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    if dynamic is not None:
        return dynamic
    static = function.attributes.get(name.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0)
    device = function.context.device
    return device.limits(Attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)[0] - static


def record_head(
    function: Function,
    stream: Stream,
    grid: Size,
    block: Size,
    shared: int,
    op: Op = Op.LAUNCH,
) -> bytes:
    """Return a launch record up to its parameters; all kinds of launch have the same fields."""
    length = _FIELDS.size + function.parameter_bytes
    return RECORD.pack(op, 0, length) + _FIELDS.pack(
        function.handle, stream.handle, *grid, *block, shared
    )
