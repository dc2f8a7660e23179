"""Libraries: their modules in each context, and their kernels as functions there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlast.cuda_types import CUresult
from outlast.session.operations import Op
from outlast.shim.client import Client
from outlast.shim.failure import check, require
from outlast.shim.modules import enter_module, function_of
from outlast.shim.objects import Context, Function, Kernel, Library, Module


def library_module(me: Client, library: Library, context: Context) -> Module:
    """Return a library's module in a context; it is loaded when first asked for."""
    found = library.modules.get(context)
    if found is not None:
        return found
    with library.loading:
        found = library.modules.get(context)
        if found is None:
            require(me.libraries.find(library.handle), CUresult.CUDA_ERROR_INVALID_HANDLE)
            handle = me.link.new_handle()
            with bound_to(me, context):
                reply = me.link.call(Op.LIBRARY_MODULE, handle, library.handle)
            check(reply.result)
            found = enter_module(me, Op.LIBRARY_MODULE, handle, context, reply, library)
    return found


def kernel_function(me: Client, kernel: Kernel, context: Context) -> Function:
    """Return a kernel's function in a context, with the attributes that the kernel was given."""
    module = library_module(me, kernel.origin, context)
    known = module.functions.get(kernel.info.name)
    function = known or function_of(me, module, kernel.info.name)
    for attribute, value in kernel.settings.get(context.device, {}).items():
        if function.attributes.get(attribute) != value:
            set_attribute(me, function, attribute, value)
    return function


def any_function(me: Client, handle: Any) -> Function:
    """Return the function that a handle names, or that a kernel is in the current context."""
    kernel = me.kernels.find(handle)
    if kernel is None:
        return me.functions.get(handle)
    return kernel_function(me, kernel, me.enter())


def set_attribute(me: Client, function: Function, attribute: int, value: int) -> None:
    """Set an attribute of a function."""
    reply = me.link.call(Op.FUNCTION_SET_ATTRIBUTE, function.handle, attribute, value)
    check(reply.result)
    with me.lock:
        function.attributes[attribute] = value
        function.occupancy.clear()
        # Launches with more shared memory than is allowed now must be checked again.
        function.context.plans.clear()


@contextmanager
def bound_to(me: Client, context: Context) -> Iterator[None]:
    """Let the calling thread's calls be those of a context, whichever is current."""
    current = me.thread.top
    if current is context:
        yield
        return
    me.link.bind(context.handle)
    try:
        yield
    finally:
        me.link.bind(current.handle if current else 0)
