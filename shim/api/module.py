"""Modules and their functions. Loads travel; every look-up is answered from the load's reply."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUfunction_attribute, CUresult
from outlast.session.schema import Op
from outlast.session.wire import unpack_reply
from outlast.shim.allocations import Allocation
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import CUdeviceptr, CUfunction, CUmodule
from outlast.shim.image import file_bytes, image_bytes
from outlast.shim.module_info import parse_module_info
from outlast.shim.objects import Context, Function, Module

#: Attributes that cuFuncSetAttribute may change.
_SETTABLE = (
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
)


@api(outputs=1)
def cuModuleLoadData(image: Any) -> tuple[CUresult, CUmodule]:
    """Load an image (PTX text, cubin or fatbin; bytes or an address) into the context."""
    me = client()
    return _load(me, me.enter(), image_bytes(image))


@api(outputs=1)
def cuModuleLoadFatBinary(fatCubin: Any) -> tuple[CUresult, CUmodule]:
    """Load a fatbin into the context."""
    return cuModuleLoadData(fatCubin)


@api(outputs=1)
def cuModuleLoad(fname: bytes | str) -> tuple[CUresult, CUmodule]:
    """Load an image from a file of this machine into the context."""
    me = client()
    return _load(me, me.enter(), file_bytes(fname))


def _load(me: Client, context: Context, data: bytes) -> tuple[CUresult, CUmodule]:
    handle = me.link.new_handle()
    reply = me.link.call(Op.MODULE_LOAD, handle, data=data)
    check(reply.result)
    kernels, variables = parse_module_info(unpack_reply(Op.MODULE_LOAD, reply.data)[0])
    with me.lock:
        require(context.alive, CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        me.modules.add(Module(handle, context, kernels, variables))
        for address, size in variables.values():
            me.allocations.add(Allocation(address, size, context, module=handle))
    return SUCCESS, CUmodule(handle)


@api(outputs=1)
def cuModuleLoadDataEx(
    image: Any, numOptions: int, options: Any, optionValues: Any
) -> tuple[CUresult, CUmodule]:
    """Load an image; the compiler options only tune the build and are not forwarded."""
    return cuModuleLoadData(image)


@api()
def cuModuleUnload(hmod: Any) -> tuple[CUresult]:
    """Unload a module; its functions and variables are gone."""
    me = client()
    me.enter()
    with me.lock:
        module = me.modules.get(hmod)
        me.link.send(Op.MODULE_UNLOAD, module.handle)
        me.modules.remove(module)
        for function in module.functions.values():
            me.functions.remove(function)
        me.allocations.drop_module(module.handle)
        module.context.plans.clear()
    return OK


@api(outputs=1)
def cuModuleGetFunction(hmod: Any, name: bytes | str) -> tuple[CUresult, CUfunction]:
    """Return a kernel of a module by name."""
    me = client()
    me.enter()
    key = _text(name)
    with me.lock:
        module = me.modules.get(hmod)
        function = module.functions.get(key)
        if function is None:
            info = module.kernels.get(key)
            if info is None:
                raise CallFailure(CUresult.CUDA_ERROR_NOT_FOUND)
            handle = me.link.new_handle()
            function = Function(handle, module.context, info, dict(info.attributes))
            me.link.send(Op.FUNCTION_GET, handle, module.handle, data=key.encode())
            module.functions[key] = function
            me.functions.add(function)
    return SUCCESS, CUfunction(function.handle)


@api(outputs=2)
def cuModuleGetGlobal(hmod: Any, name: bytes | str) -> tuple[CUresult, CUdeviceptr, int]:
    """Return address and size of a module's variable."""
    me = client()
    me.context()
    variable = me.modules.get(hmod).globals.get(_text(name))
    if variable is None:
        raise CallFailure(CUresult.CUDA_ERROR_NOT_FOUND)
    address, size = variable
    return SUCCESS, CUdeviceptr(address), size


@api(outputs=1)
def cuFuncGetAttribute(attrib: CUfunction_attribute, hfunc: Any) -> tuple[CUresult, int]:
    """Return an attribute of a kernel."""
    attributes = client().functions.get(hfunc).attributes
    require(int(attrib) in attributes)
    return SUCCESS, attributes[int(attrib)]


@api()
def cuFuncSetAttribute(hfunc: Any, attrib: CUfunction_attribute, value: int) -> tuple[CUresult]:
    """Set an attribute of a kernel."""
    me = client()
    me.enter()
    function = me.functions.get(hfunc)
    require(attrib in _SETTABLE)
    require(-(1 << 31) <= value < 1 << 31)
    reply = me.link.call(Op.FUNCTION_SET_ATTRIBUTE, function.handle, int(attrib), int(value))
    check(reply.result)
    with me.lock:
        function.attributes[int(attrib)] = int(value)
        # Launches with more shared memory than is allowed now must be checked again.
        function.context.plans.clear()
    return OK


@api(outputs=2)
def cuFuncGetParamInfo(func: Any, paramIndex: int) -> tuple[CUresult, int, int]:
    """Return offset and size of a kernel's parameter."""
    parameters = client().functions.get(func).info.parameters
    require(0 <= paramIndex < len(parameters))
    return SUCCESS, *parameters[paramIndex]


def _text(name: bytes | str) -> str:
    text = name if isinstance(name, str) else bytes(name).decode(errors="surrogateescape")
    return text.partition("\0")[0]
