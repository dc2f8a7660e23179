"""Modules and functions of the client's tables: entering, looking up, forgetting."""

from __future__ import annotations

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.session.wire import unpack_reply
from outlast.shim.allocations import Allocation
from outlast.shim.client import Client
from outlast.shim.failure import require
from outlast.shim.linkage import Reply
from outlast.shim.module_info import parse_module_info
from outlast.shim.objects import Context, Function, Library, Module


def enter_module(
    me: Client, op: Op, handle: int, context: Context, reply: Reply, library: Library | None = None
) -> Module:
    """Enter a module that was loaded, with its variables."""
    kernels, variables = parse_module_info(unpack_reply(op, reply.data)[0])
    module = Module(handle, context, kernels, variables, origin=library)
    with me.lock:
        require(context.alive, CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        me.modules.add(module)
        for address, size in variables.values():
            me.allocations.add(Allocation(address, size, context, module=handle))
        if library is not None:
            library.modules[context] = module
    return module


def forget_module(me: Client, module: Module) -> None:
    """Forget a module with its functions and variables; under the lock."""
    me.modules.remove(module)
    for function in module.functions.values():
        me.functions.remove(function)
    me.allocations.drop_module(module.handle)
    module.context.plans.clear()


def function_of(me: Client, module: Module, name: str) -> Function:
    """Return a kernel of a module by name, always the same; NOT_FOUND if it has none."""
    with me.lock:
        require(me.modules.find(module.handle), CUresult.CUDA_ERROR_INVALID_HANDLE)
        function = module.functions.get(name)
        if function is None:
            info = module.kernels.get(name)
            require(info, CUresult.CUDA_ERROR_NOT_FOUND)
            assert info is not None
            handle = me.link.new_handle()
            function = Function(handle, module.context, module, info, dict(info.attributes))
            me.link.send(Op.FUNCTION_GET, handle, module.handle, data=name.encode())
            module.functions[name] = function
            me.functions.add(function)
    return function


def name_of(name: bytes | str) -> str:
    """Return a name that a program gives."""
    text = name if isinstance(name, str) else bytes(name).decode(errors="surrogateescape")
    return text.partition("\0")[0]
