"""Modules and their functions. Loads travel; every look-up is answered from the load's reply."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUmoduleLoadingMode, CUresult
from outlast.session.operations import Op
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import CUdeviceptr, CUfunction, CUmodule
from outlast.shim.image import file_bytes, image_bytes
from outlast.shim.modules import enter_module, forget_module, function_of, name_of
from outlast.shim.objects import Context

__all__ = [
    "cuModuleEnumerateFunctions",
    "cuModuleGetFunction",
    "cuModuleGetFunctionCount",
    "cuModuleGetGlobal",
    "cuModuleGetLoadingMode",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
]


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
    enter_module(me, Op.MODULE_LOAD, handle, context, reply)
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
        require(module.origin is None, CUresult.CUDA_ERROR_NOT_PERMITTED)
        me.link.send(Op.MODULE_UNLOAD, module.handle)
        forget_module(me, module)
    return OK


@api(outputs=1)
def cuModuleGetFunction(hmod: Any, name: bytes | str) -> tuple[CUresult, CUfunction]:
    """Return a kernel of a module by name."""
    me = client()
    me.enter()
    return SUCCESS, CUfunction(function_of(me, me.modules.get(hmod), name_of(name)).handle)


@api(outputs=1)
def cuModuleGetFunctionCount(mod: Any) -> tuple[CUresult, int]:
    """Return how many kernels a module has."""
    me = client()
    me.context()
    return SUCCESS, len(me.modules.get(mod).kernels)


@api(outputs=1)
def cuModuleEnumerateFunctions(numFunctions: int, mod: Any) -> tuple[CUresult, list[CUfunction]]:
    """Return up to so many kernels of a module."""
    me = client()
    me.enter()
    module = me.modules.get(mod)
    require(numFunctions > 0)
    names = list(module.kernels)[:numFunctions]
    return SUCCESS, [CUfunction(function_of(me, module, name).handle) for name in names]


@api(outputs=1)
def cuModuleGetLoadingMode() -> tuple[CUresult, CUmoduleLoadingMode]:
    """Return when kernels are loaded: with their module."""
    client()
    return SUCCESS, CUmoduleLoadingMode.CU_MODULE_EAGER_LOADING


@api(outputs=2)
def cuModuleGetGlobal(hmod: Any, name: bytes | str) -> tuple[CUresult, CUdeviceptr, int]:
    """Return address and size of a module's variable."""
    me = client()
    me.context()
    variable = me.modules.get(hmod).globals.get(name_of(name))
    if variable is None:
        raise CallFailure(CUresult.CUDA_ERROR_NOT_FOUND)
    address, size = variable
    return SUCCESS, CUdeviceptr(address), size
