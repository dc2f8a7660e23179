"""Calls about modules, functions and launches."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from typing import Any

from outlast.server.drivers.base import FunctionInfo, GlobalInfo, ModuleInfo, ParameterInfo, Shape
from outlast.server.drivers.cuda.objects import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    Function,
    Module,
)
from outlast.server.drivers.cuda.rows import RowCalls
from outlast.server.drivers.cuda.symbols import variable_names

log = logging.getLogger(__name__)

#: How long a load waits for the device, so that modules without use make room before it.
ROOM = 1.0  # seconds

#: Made once: a launch takes no longer than making one.
_ALL = slice(None)


class ModuleCalls(RowCalls):
    """Loading, looking up, unloading, launching."""

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        """Load PTX text, a cubin or a fatbin into the current context."""
        context = self._current
        if context is None:
            return INVALID_CONTEXT, 0
        if self._leaving:
            # Now and not at some time: what is loaded lies where it did when this is done again.
            self.wait(self.timeline.fence(), ROOM)
            self._unload()
        error, raw = self.cuda.cuModuleLoadData(bytes(image))
        if error:
            return self.failed(int(error)), 0
        functions = self._functions_of(raw)
        variables = self._variables_of(raw, image)
        for handle, function in functions.items():
            self._functions[handle] = function
        module = Module(
            raw,
            context,
            list(functions),
            tuple(f.info for f in functions.values()),
            variables,
        )
        self._modules[int(raw)] = module
        context.modules.add(int(raw))
        return 0, int(raw)

    def load_module_at(self, image: bytes, addresses: dict[str, int]) -> tuple[int, int]:
        """Load an image; its variables must come to lie where they did before."""
        error, handle = self.cuModuleLoadData(image)
        if error:
            return error, 0
        found = {g.name: g.address for g in self._modules[handle].globals}
        if found == addresses:
            return 0, handle
        log.warning(
            "the variables of a module do not come back to their addresses: %s",
            ", ".join(f"{name} at {address:#x}" for name, address in found.items()),
            extra={"action": "variables_moved"},
        )
        self.cuModuleUnload(handle)
        return OUT_OF_MEMORY, 0

    def describe_image(self, image: bytes) -> tuple[int, ModuleInfo | None]:
        """Return what a module of an image would offer: load one for a moment."""
        with self.within(self._open(self._devices[0])):
            error, raw = self.cuda.cuModuleLoadData(bytes(image))
            if error:
                return self.failed(int(error)), None
            infos = tuple(f.info for f in self._functions_of(raw).values())
            variables = tuple(GlobalInfo(g.name, 0, g.size) for g in self._variables_of(raw, image))
            error = self._result(self.cuda.cuModuleUnload(raw))
        return error, None if error else ModuleInfo(infos, variables)

    def cuModuleUnload(self, hmod: int) -> tuple[int]:
        """Unload a module; work that was issued before still runs its code."""
        if hmod not in self._modules:
            return (INVALID_HANDLE,)
        return (self._drop_module(hmod),)

    def _drop_module(self, handle: int) -> int:
        module = self._modules.pop(handle)
        module.context.modules.discard(handle)
        for function in module.functions:
            self._functions.pop(function, None)
        self._leaving.append((self.timeline.fence(), module))
        return self._unload()

    def _unload(self) -> int:
        """Unload the modules whose code cannot be running any more.

        Unloading waits for all work of the device, also for what was issued later; the executor
        must not. So it is done while there is none.
        """
        if not self.timeline.idle():
            return 0
        code = 0
        left = []
        for ticket, module in self._leaving:
            if self.timeline.done(ticket):
                with self.within(module.context):
                    code = code or self._result(self.cuda.cuModuleUnload(module.raw))
            else:
                left.append((ticket, module))
        self._leaving = left
        return code

    def module_info(self, module: int) -> ModuleInfo:
        """Return what a module offers.

        Raises
        ------
        KeyError
            No module has this handle.
        """
        found = self._modules[module]
        return ModuleInfo(found.infos, found.globals)

    def cuModuleGetFunction(self, hmod: int, name: bytes) -> tuple[int, int]:
        """Return a kernel by name."""
        module = self._modules.get(hmod)
        if module is None:
            return INVALID_HANDLE, 0
        text = name.decode(errors="replace")
        for handle in module.functions:
            if self._functions[handle].info.name == text:
                return 0, handle
        return NOT_FOUND, 0

    def cuFuncSetAttribute(self, hfunc: int, attrib: int, value: int) -> tuple[int]:
        """Set an attribute of a kernel."""
        function = self._functions.get(hfunc)
        if function is None:
            return (INVALID_HANDLE,)
        try:
            attribute = self.cuda.CUfunction_attribute(attrib)
        except ValueError:
            return (INVALID_VALUE,)
        return (self._result(self.cuda.cuFuncSetAttribute(function.raw, attribute, value)),)

    # -- launching -----------------------------------------------------------------------------

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
        parameters: bytes | memoryview,
    ) -> int:
        """Launch a kernel with its packed parameters: the hottest call."""
        kernel = self._functions.get(function)
        target = self._streams.get(stream)
        if kernel is None or target is None:
            return INVALID_HANDLE
        timeline = self.timeline
        if target.epoch != timeline.epoch:
            timeline.attend(target)
        size = kernel.size
        if len(parameters) != size:
            if len(parameters) < size:
                return INVALID_VALUE
            parameters = parameters[:size]
        if size:
            # CUDA takes the parameters before it returns, so one buffer does.
            kernel.buffer[:] = parameters
        error = self._launch_kernel(
            kernel.raw,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared,
            target.raw,
            kernel.pointers,
            0,
        )[0]
        if error:
            return self.failed(int(error))
        self._work_tag = self.tag
        if not target.dirty:
            timeline.issued(target)
        return 0

    def prepare_launch(
        self, function: int, stream: int, shape: Shape, length: int
    ) -> Callable[[bytes], int]:
        """Return `launch_packed` with all that does not change looked up."""
        kernel, target, timeline = self._functions[function], self._streams[stream], self.timeline
        if length != kernel.size:
            return functools.partial(self.launch_packed, function, stream, *shape)
        buffer = kernel.buffer
        call = functools.partial(
            self._launch_kernel, kernel.raw, *shape, target.raw, kernel.pointers, 0
        )

        def launch(parameters: bytes) -> int:
            if target.epoch != timeline.epoch:
                timeline.attend(target)
            buffer[_ALL] = parameters
            error = call()[0]
            if error:
                return self.failed(int(error))
            self._work_tag = self.tag
            if not target.dirty:
                timeline.issued(target)
            return 0

        return launch

    # -- describing ----------------------------------------------------------------------------

    def _functions_of(self, module: Any) -> dict[int, Function]:
        cuda = self.cuda
        error, count = cuda.cuModuleGetFunctionCount(module)
        if error or not count:
            return {}
        error, found = cuda.cuModuleEnumerateFunctions(count, module)
        if error:
            return {}
        # Asking loads a function: always in the same order, so that all comes to lie alike.
        named = sorted((bytes(cuda.cuFuncGetName(raw)[1]), int(raw), raw) for raw in found)
        return {handle: self._describe(name, raw) for name, handle, raw in named}

    def _variables_of(self, module: Any, image: bytes) -> tuple[GlobalInfo, ...]:
        found = []
        for name in variable_names(image):
            error, address, size = self.cuda.cuModuleGetGlobal(module, name.encode())
            if not error and size:
                found.append(GlobalInfo(name, int(address), int(size)))
        return tuple(found)

    def _describe(self, name: bytes, raw: Any) -> Function:
        cuda = self.cuda
        # A kernel that is not loaded yet has no attributes.
        cuda.cuFuncLoad(raw)
        parameters: list[ParameterInfo] = []
        while True:
            error, offset, size = cuda.cuFuncGetParamInfo(raw, len(parameters))
            if error:
                break
            parameters.append(ParameterInfo(int(offset), int(size)))
        attributes = {}
        for attribute in cuda.CUfunction_attribute:
            if attribute.name.endswith("_MAX"):
                continue
            error, value = cuda.cuFuncGetAttribute(attribute, raw)
            if not error:
                attributes[int(attribute)] = int(value)
        length = max((p.offset + p.size for p in parameters), default=0)
        info = FunctionInfo(name.decode(errors="replace"), tuple(parameters), attributes)
        buffer = (ctypes.c_uint8 * max(length, 1))()
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * len(parameters))(*(base + p.offset for p in parameters))
        return Function(
            raw,
            info,
            length,
            memoryview(buffer).cast("B")[:length],
            ctypes.addressof(pointers) if parameters else 0,
            (buffer, pointers),
        )
