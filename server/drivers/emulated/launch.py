"""Kernel launches."""

from __future__ import annotations

import ctypes
from typing import Any

from outlast.server.drivers.emulated.modules import ModuleCalls
from outlast.server.drivers.emulated.objects import Function
from outlast.server.drivers.emulated.properties import MAX_BLOCK, MAX_GRID, MAX_PARAMETERS
from outlast.server.drivers.emulated.results import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    Refusal,
    cuda_call,
    number,
)
from outlast.server.drivers.emulated.state import FAULT

_MAX_GX, _MAX_GY, _MAX_GZ = MAX_GRID
_MAX_BX, _MAX_BY, _MAX_BZ = MAX_BLOCK
_INVALID_PTX = 218

# Keys of the ``extra`` list.
_EXTRA_END, _EXTRA_BUFFER, _EXTRA_SIZE = 0, 1, 2


class LaunchCalls(ModuleCalls):
    """Kernel launches."""

    def launch_packed(
        self,
        function: int,
        stream: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        params: bytes | bytearray | memoryview,
    ) -> int:
        """Launch a kernel with its packed parameters; return a ``CUresult`` value.

        This is the hottest call: plain handles, no conversions.
        """
        fault = self._words[FAULT]
        if fault:
            return fault
        kernel = self._functions.get(function)
        if kernel is None:
            return INVALID_HANDLE
        context = self._current.context
        if context is None:
            return INVALID_CONTEXT
        if stream > 2:
            target = self._streams.get(stream)
            if target is None:
                return INVALID_HANDLE
        else:
            target = context.per_thread if stream == 2 else context.legacy
        if target.context is not kernel.module.context:
            return INVALID_HANDLE
        if not context.alive:
            return CONTEXT_IS_DESTROYED
        threads = block_x * block_y * block_z
        if not (
            0 < grid_x <= _MAX_GX
            and 0 < grid_y <= _MAX_GY
            and 0 < grid_z <= _MAX_GZ
            and 0 < block_x <= _MAX_BX
            and 0 < block_y <= _MAX_BY
            and 0 < block_z <= _MAX_BZ
            and threads <= kernel.max_threads
            and 0 <= shared <= kernel.dynamic_limit
            and kernel.parameter_size <= len(params) <= MAX_PARAMETERS
        ):
            return INVALID_VALUE
        if not kernel.entry and not self._compile(kernel):
            return _INVALID_PTX
        engine = self.engine
        with engine.lock:
            ticket = engine.launch(
                self.tag,
                kernel.entry,
                kernel.worker,
                kernel.number,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                kernel.shared_size + shared,
                shared,
                params,
            )
            target.ticket = ticket
            if target.blocking:
                target.context.blocking_ticket = ticket
        return 0

    @cuda_call()
    def cuLaunchKernel(
        self,
        f: Any,
        gridDimX: Any,
        gridDimY: Any,
        gridDimZ: Any,
        blockDimX: Any,
        blockDimY: Any,
        blockDimZ: Any,
        sharedMemBytes: Any,
        hStream: Any,
        kernelParams: Any,
        extra: Any = 0,
    ) -> None:
        """Launch a kernel."""
        function = self._function(f)
        if kernelParams and extra:
            raise Refusal(INVALID_VALUE)
        if extra:
            params: bytes | bytearray = _from_extra(number(extra))
        else:
            params = _pack(function, kernelParams)
        code = self.launch_packed(
            function.handle,
            number(hStream),
            number(gridDimX),
            number(gridDimY),
            number(gridDimZ),
            number(blockDimX),
            number(blockDimY),
            number(blockDimZ),
            number(sharedMemBytes),
            params,
        )
        if code:
            raise Refusal(code)

    def _compile(self, kernel: Function) -> bool:
        """Compile a kernel at its first launch, in the calling thread, once.

        A second compilation would replace code that queued launches are about to run.
        """
        with self._compiling:
            return bool(kernel.entry) or self._compile_now(kernel)

    def _compile_now(self, kernel: Function) -> bool:
        try:
            code = self.jit.build(kernel.lowered.ir)
        except RuntimeError as error:
            self._refused(error)
            return False
        names = kernel.lowered.global_names
        if names:
            get_table = ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address("global_table"))
            table = (ctypes.c_uint64 * len(names)).from_address(get_table())
            for index, name in enumerate(names):
                table[index] = kernel.module.globals[name][0]
        kernel.code = code
        kernel.entry = code.address("run_blocks")
        return True


def _pack(function: Function, given: Any) -> bytes | bytearray:
    """Pack launch parameters given as ``(values, ctypes types)`` or as a ``void**``."""
    if not function.parameters:
        return b""
    if isinstance(given, tuple):
        return _pack_values(function, given)
    address = number(given)
    if not address:
        raise Refusal(INVALID_VALUE)
    packed = bytearray(function.parameter_size)
    pointers = (ctypes.c_void_p * len(function.parameters)).from_address(address)
    for parameter, pointer in zip(function.parameters, pointers, strict=True):
        if not pointer:
            raise Refusal(INVALID_VALUE)
        value = ctypes.string_at(pointer, parameter.size)
        packed[parameter.offset : parameter.offset + parameter.size] = value
    return packed


def _pack_values(function: Function, given: tuple[Any, ...]) -> bytearray:
    packed = bytearray(function.parameter_size)
    if len(given) != 2 or not len(given[0]) == len(given[1]) == len(function.parameters):
        raise Refusal(INVALID_VALUE)
    for parameter, value, kind in zip(function.parameters, *given, strict=True):
        data = _value_bytes(value, kind)
        if len(data) < parameter.size:
            raise Refusal(INVALID_VALUE)
        packed[parameter.offset : parameter.offset + parameter.size] = data[: parameter.size]
    return packed


def _value_bytes(value: Any, kind: Any) -> bytes:
    """Return a parameter's bytes; without a type the value is a ctypes object or a handle."""
    if kind is None:
        is_ctypes = isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Array)
        return bytes(value) if is_ctypes else number(value).to_bytes(8, "little")
    if isinstance(value, kind):
        return bytes(value)
    if issubclass(kind, ctypes.c_float | ctypes.c_double):
        return bytes(kind(float(value)))
    return bytes(kind(number(value)))


def _from_extra(address: int) -> bytes:
    """Return the packed buffer that an ``extra`` list names."""
    entries = (ctypes.c_uint64 * 5).from_address(address)
    buffer = length = 0
    for index in range(0, 4, 2):
        key, value = entries[index], entries[index + 1]
        if key == _EXTRA_END:
            break
        if key == _EXTRA_BUFFER:
            buffer = value
        elif key == _EXTRA_SIZE and value:
            length = ctypes.c_uint64.from_address(value).value
        else:
            raise Refusal(INVALID_VALUE)
    if not buffer or not 0 < length <= MAX_PARAMETERS:
        raise Refusal(INVALID_VALUE)
    return ctypes.string_at(buffer, length)
