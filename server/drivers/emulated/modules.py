"""Calls about modules and functions."""

from __future__ import annotations

import logging
from typing import Any

from outlast.cuda_types import CUfunction_attribute
from outlast.server.drivers.base import FunctionInfo, GlobalInfo, ModuleInfo
from outlast.server.drivers.emulated.devices import ContextCalls
from outlast.server.drivers.emulated.loader import (
    Kernel,
    Program,
    initial_bytes,
    read_image,
    read_program,
)
from outlast.server.drivers.emulated.lower.callgraph import function_addresses
from outlast.server.drivers.emulated.objects import Context, Function, LoadedModule
from outlast.server.drivers.emulated.properties import SHARED_OPTIN
from outlast.server.drivers.emulated.ptx.problems import ImageError
from outlast.server.drivers.emulated.results import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    Refusal,
    cuda_call,
    number,
)

logger = logging.getLogger(__name__)

_MAX_DYNAMIC = int(CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
_CARVEOUT = int(CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)


class ModuleCalls(ContextCalls):
    """Loading, looking up and unloading of modules."""

    #: Why the last image was refused.
    load_log: str = ""

    @cuda_call(1)
    def cuModuleLoadData(self, image: Any) -> int:
        """Load PTX text: parse, check every instruction, place its variables."""
        return self._load(image, None)

    @cuda_call()
    def cuModuleUnload(self, hmod: Any) -> None:
        """Unload a module; launches already queued still run."""
        with self.engine.lock:
            self._drop_module(self._module(hmod))

    @cuda_call(1)
    def cuModuleGetFunction(self, hmod: Any, name: Any) -> int:
        """Return a kernel by name."""
        function = self._module(hmod).functions.get(_text(name))
        if function is None:
            raise Refusal(NOT_FOUND)
        return function.handle

    @cuda_call(2)
    def cuModuleGetGlobal(self, hmod: Any, name: Any) -> tuple[int, int]:
        """Return address and size of a module variable."""
        found = self._module(hmod).globals.get(_text(name))
        if found is None:
            raise Refusal(NOT_FOUND)
        return found

    @cuda_call(1)
    def cuFuncGetAttribute(self, attrib: Any, hfunc: Any) -> int:
        """Return an attribute of a kernel."""
        value = self._function(hfunc).attributes.get(number(attrib))
        if value is None:
            raise Refusal(INVALID_VALUE)
        return value

    @cuda_call()
    def cuFuncSetAttribute(self, hfunc: Any, attrib: Any, value: Any) -> None:
        """Set the limit of dynamic shared memory, or the preferred carve-out."""
        function, attribute, wanted = self._function(hfunc), number(attrib), number(value)
        if attribute == _MAX_DYNAMIC and 0 <= wanted <= SHARED_OPTIN - function.shared_size:
            function.dynamic_limit = wanted
        elif attribute != _CARVEOUT or not -1 <= wanted <= 100:
            raise Refusal(INVALID_VALUE)
        function.attributes[attribute] = wanted

    @cuda_call(2)
    def cuFuncGetParamInfo(self, func: Any, paramIndex: Any) -> tuple[int, int]:
        """Return offset and size of a kernel's parameter."""
        parameters, index = self._function(func).parameters, number(paramIndex)
        if not 0 <= index < len(parameters):
            raise Refusal(INVALID_VALUE)
        return parameters[index].offset, parameters[index].size

    # -- beyond CUDA's calls ---------------------------------------------------

    def module_info(self, module: int) -> ModuleInfo:
        """Return what a module loaded by `cuModuleLoadData` offers.

        Raises
        ------
        KeyError
            No module has this handle.
        """
        found = self._modules.get(module)
        if found is None:
            raise KeyError(module)
        functions = tuple(
            FunctionInfo(f.name, f.parameters, dict(f.attributes)) for f in found.functions.values()
        )
        variables = tuple(
            GlobalInfo(name, address, size) for name, (address, size) in found.globals.items()
        )
        return ModuleInfo(functions, variables)

    def describe_image(self, image: bytes) -> tuple[int, ModuleInfo | None]:
        """Return what a module of an image would offer, with its variables nowhere."""
        try:
            program = self._program_of(image)
        except Refusal as refusal:
            return refusal.code, None
        functions = tuple(
            FunctionInfo(k.function.name, k.parameters(), dict(k.attributes))
            for k in program.kernels
        )
        variables = tuple(GlobalInfo(v.name, 0, max(v.size, 1)) for v in program.variables)
        return 0, ModuleInfo(functions, variables)

    def load_module_at(self, image: bytes, addresses: dict[str, int]) -> tuple[int, int]:
        """Load an image with its variables at given addresses; (``CUresult`` value, module)."""
        code = self.fault_code()
        if code:
            return code, 0
        try:
            return 0, self._load(image, addresses)
        except Refusal as refusal:
            return refusal.code, 0

    # -- loading -------------------------------------------------------------

    def _load(self, image: Any, addresses: dict[str, int] | None) -> int:
        context = self._context()
        return self._place(self._program_of(image), context, addresses)

    def _program_of(self, image: Any) -> Program:
        try:
            return read_program(read_image(image))
        except ImageError as error:
            self._refused(error)
            raise Refusal(error.cu_result) from error

    def _refused(self, reason: Exception) -> None:
        self.load_log = str(reason)
        logger.warning("An image was refused: %s.", reason, extra={"action": "image_refused"})

    def _place(self, program: Program, context: Context, addresses: dict[str, int] | None) -> int:
        with self.engine.lock:
            module = LoadedModule(self._modules.new(), context)
            self._modules.put(module.handle, module)
            try:
                self._place_variables(program, module, addresses)
            except Refusal:
                self._drop_module(module)
                raise
            except ImageError as error:
                self._drop_module(module)
                self._refused(error)
                raise Refusal(error.cu_result) from error
            for kernel in program.kernels:
                self._add_function(module, kernel)
            return module.handle

    def _place_variables(
        self, program: Program, module: LoadedModule, addresses: dict[str, int] | None
    ) -> None:
        context = module.context
        arena = context.device.arena
        if addresses is not None and set(addresses) != {v.name for v in program.variables}:
            raise Refusal(INVALID_VALUE)
        for variable in program.variables:
            wanted = None if addresses is None else addresses[variable.name]
            size = max(variable.size, 1)
            address = arena.allocate(size, "global", context.handle, at=wanted)
            if address is None:
                raise Refusal(OUT_OF_MEMORY)
            module.globals[variable.name] = (address, size)
        placed = function_addresses(program.module)
        placed |= {name: address for name, (address, _) in module.globals.items()}
        for variable in program.variables:
            data = initial_bytes(variable, placed)
            if data:
                self.engine.write(self.tag, placed[variable.name], data)

    def _add_function(self, module: LoadedModule, kernel: Kernel) -> None:
        handle = self._functions.new()
        name = kernel.function.name
        function = Function(
            handle=handle,
            name=name,
            number=len(self._kernel_names),
            module=module,
            layout=kernel.layout,
            lowered=kernel.lowered,
            parameters=kernel.parameters(),
            attributes=dict(kernel.attributes),
            max_threads=kernel.attributes[
                CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
            ],
            dynamic_limit=kernel.attributes[_MAX_DYNAMIC],
            shared_size=kernel.layout.shared_size,
            parameter_size=kernel.layout.parameter_size,
            worker=module.context.device.arena.worker,
        )
        self._kernel_names.append(name)
        self._functions.put(handle, function)
        module.functions[name] = function

    def _module(self, handle: Any) -> LoadedModule:
        module = self._modules.get(number(handle))
        if module is None:
            raise Refusal(INVALID_HANDLE)
        return module

    def _function(self, handle: Any) -> Function:
        function = self._functions.get(number(handle))
        if function is None:
            raise Refusal(INVALID_HANDLE)
        return function


def _text(name: Any) -> str:
    if isinstance(name, bytes | bytearray):
        return bytes(name).split(b"\0", 1)[0].decode(errors="replace")
    if isinstance(name, str):
        return name
    raise Refusal(INVALID_VALUE)
