"""Libraries and their kernels, which hold in every context. Loads travel, look-ups do not."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import CUfunc_cache, CUfunction_attribute, CUresult
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.api.function import check_setting
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, check, require
from outlast.shim.handles import CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule, as_int
from outlast.shim.image import file_bytes, image_bytes
from outlast.shim.libraries import kernel_function, library_module, set_attribute
from outlast.shim.module_info import parse_module_info
from outlast.shim.modules import enter_module, forget_module, name_of
from outlast.shim.objects import Kernel, Library

__all__ = [
    "cuKernelGetAttribute",
    "cuKernelGetFunction",
    "cuKernelGetLibrary",
    "cuKernelGetName",
    "cuKernelGetParamCount",
    "cuKernelGetParamInfo",
    "cuKernelSetAttribute",
    "cuKernelSetCacheConfig",
    "cuLibraryEnumerateKernels",
    "cuLibraryGetGlobal",
    "cuLibraryGetKernel",
    "cuLibraryGetKernelCount",
    "cuLibraryGetManaged",
    "cuLibraryGetModule",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
]

NOT_FOUND = CUresult.CUDA_ERROR_NOT_FOUND


@api(outputs=1)
def cuLibraryLoadData(
    code: Any,
    jitOptions: Any,
    jitOptionsValues: Any,
    numJitOptions: int,
    libraryOptions: Any,
    libraryOptionValues: Any,
    numLibraryOptions: int,
) -> tuple[CUresult, CUlibrary]:
    """Load an image for any context, and in the current one; options only tune the build."""
    return _load(client(), image_bytes(code))


@api(outputs=1)
def cuLibraryLoadFromFile(
    fileName: bytes | str,
    jitOptions: Any,
    jitOptionsValues: Any,
    numJitOptions: int,
    libraryOptions: Any,
    libraryOptionValues: Any,
    numLibraryOptions: int,
) -> tuple[CUresult, CUlibrary]:
    """Load an image from a file of this machine, as `cuLibraryLoadData` does."""
    return _load(client(), file_bytes(fileName))


def _load(me: Client, data: bytes) -> tuple[CUresult, CUlibrary]:
    check(me.link.sticky())
    context = me.thread.top
    if context is not None and not context.alive:
        context = None
    handle = me.link.new_handle()
    module = me.link.new_handle() if context is not None else 0
    reply = me.link.call(Op.LIBRARY_LOAD, handle, module, data=data)
    check(reply.result)
    library = Library(handle, parse_module_info(unpack_reply(Op.LIBRARY_LOAD, reply.data)[0])[0])
    with me.lock:
        me.libraries.add(library)
    if context is not None:
        enter_module(me, Op.LIBRARY_LOAD, module, context, reply, library)
    return SUCCESS, CUlibrary(handle)


@api()
def cuLibraryUnload(library: Any) -> tuple[CUresult]:
    """Unload a library; its kernels, and its modules in all contexts, are gone."""
    me = client()
    check(me.link.sticky())
    with me.lock:
        found = me.libraries.get(library)
        me.link.send(Op.LIBRARY_UNLOAD, found.handle)
        me.libraries.remove(found)
        for kernel in found.kernels.values():
            me.kernels.remove(kernel)
        for module in found.modules.values():
            forget_module(me, module)
    return OK


@api(outputs=1)
def cuLibraryGetKernel(library: Any, name: bytes | str) -> tuple[CUresult, CUkernel]:
    """Return a kernel of a library by name."""
    me = client()
    return SUCCESS, CUkernel(_kernel(me, me.libraries.get(library), name_of(name)).handle)


@api(outputs=1)
def cuLibraryGetKernelCount(lib: Any) -> tuple[CUresult, int]:
    """Return how many kernels a library has."""
    return SUCCESS, len(client().libraries.get(lib).infos)


@api(outputs=1)
def cuLibraryEnumerateKernels(numKernels: int, lib: Any) -> tuple[CUresult, list[CUkernel]]:
    """Return up to so many kernels of a library."""
    me = client()
    library = me.libraries.get(lib)
    require(numKernels > 0)
    names = list(library.infos)[:numKernels]
    return SUCCESS, [CUkernel(_kernel(me, library, name).handle) for name in names]


@api(outputs=1)
def cuLibraryGetModule(library: Any) -> tuple[CUresult, CUmodule]:
    """Return a library's module in the current context."""
    me = client()
    return SUCCESS, CUmodule(library_module(me, me.libraries.get(library), me.enter()).handle)


@api(outputs=2)
def cuLibraryGetGlobal(library: Any, name: bytes | str) -> tuple[CUresult, CUdeviceptr, int]:
    """Return address and size of a library's variable in the current context."""
    me = client()
    module = library_module(me, me.libraries.get(library), me.enter())
    variable = module.globals.get(name_of(name))
    require(variable, NOT_FOUND)
    assert variable is not None
    return SUCCESS, CUdeviceptr(variable[0]), variable[1]


@api(outputs=2)
def cuLibraryGetManaged(library: Any, name: bytes | str) -> tuple[CUresult, CUdeviceptr, int]:
    """Find no managed variable: there is no managed memory."""
    client().libraries.get(library)
    raise CallFailure(NOT_FOUND)


@api(outputs=1)
def cuKernelGetFunction(kernel: Any) -> tuple[CUresult, CUfunction]:
    """Return a kernel's function in the current context."""
    me = client()
    return SUCCESS, CUfunction(kernel_function(me, me.kernels.get(kernel), me.enter()).handle)


@api(outputs=1)
def cuKernelGetLibrary(kernel: Any) -> tuple[CUresult, CUlibrary]:
    """Return the library that a kernel is of."""
    return SUCCESS, CUlibrary(client().kernels.get(kernel).origin.handle)


@api(outputs=1)
def cuKernelGetName(hfunc: Any) -> tuple[CUresult, bytes]:
    """Return a kernel's name."""
    return SUCCESS, client().kernels.get(hfunc).info.name.encode()


@api(outputs=2)
def cuKernelGetParamInfo(kernel: Any, paramIndex: int) -> tuple[CUresult, int, int]:
    """Return offset and size of a kernel's parameter."""
    parameters = client().kernels.get(kernel).info.parameters
    require(0 <= paramIndex < len(parameters))
    return SUCCESS, *parameters[paramIndex]


@api(outputs=1)
def cuKernelGetParamCount(kernel: Any) -> tuple[CUresult, int]:
    """Return how many parameters a kernel has."""
    return SUCCESS, len(client().kernels.get(kernel).info.parameters)


@api(outputs=1)
def cuKernelGetAttribute(
    attrib: CUfunction_attribute, kernel: Any, dev: Any
) -> tuple[CUresult, int]:
    """Return an attribute that a kernel has on a device."""
    me = client()
    found = me.kernels.get(kernel)
    attributes = {**found.info.attributes, **found.settings.get(me.device(dev), {})}
    require(int(attrib) in attributes)
    return SUCCESS, attributes[int(attrib)]


@api()
def cuKernelSetAttribute(
    attrib: CUfunction_attribute, val: int, kernel: Any, dev: Any
) -> tuple[CUresult]:
    """Set an attribute of a kernel in all contexts of a device, those to come too."""
    me = client()
    check(me.link.sticky())
    found, device = me.kernels.get(kernel), me.device(dev)
    check_setting(attrib, val)
    contexts = [c for c in found.origin.modules if c.device is device]
    if not contexts and me.thread.top is not None and me.thread.top.device is device:
        contexts.append(me.thread.top)
    for context in contexts:
        set_attribute(me, kernel_function(me, found, context), int(attrib), int(val))
    found.settings.setdefault(device, {})[int(attrib)] = int(val)
    return OK


@api()
def cuKernelSetCacheConfig(kernel: Any, config: CUfunc_cache, dev: Any) -> tuple[CUresult]:
    """Prefer a division of on-chip memory: a wish, which changes nothing here."""
    me = client()
    me.kernels.get(kernel)
    me.device(dev)
    require(as_int(config) in list(CUfunc_cache))
    return OK


def _kernel(me: Client, library: Library, name: str) -> Kernel:
    with me.lock:
        require(me.libraries.find(library.handle), CUresult.CUDA_ERROR_INVALID_HANDLE)
        kernel = library.kernels.get(name)
        if kernel is None:
            info = library.infos.get(name)
            require(info, NOT_FOUND)
            assert info is not None
            kernel = Kernel(me.link.new_handle(), library, info)
            me.link.send(Op.KERNEL_GET, kernel.handle, library.handle, data=name.encode())
            library.kernels[name] = kernel
            me.kernels.add(kernel)
    return kernel
