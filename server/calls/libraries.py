"""Libraries: images whose modules are loaded in one context after the other.

A device knows modules only. What a library adds is the image, which the session keeps anyway,
and names for kernels that hold in every context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ReplayDiverged
from outlast.server.calls.modules import (
    answer_with,
    damage,
    describe,
    forget_image,
    keep_image,
    load,
    take_image,
)
from outlast.server.calls.registry import Args, Imposed, answered, one_way, unusable
from outlast.session.handles import HandleKind
from outlast.session.operations import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor

INVALID_HANDLE, NOT_FOUND = 400, 500


@answered(Op.LIBRARY_LOAD)
def library_load(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Keep an image as a library, and load it in the bound context if there is one."""
    handle, module = args
    image = take_image(ex, handle, data)
    if module:
        # First, so that the module's parent is there; it goes again if the load fails.
        _add(ex, handle, image)
        if not load(ex, module, image, (ex.context, handle), imposed):
            _drop(ex, handle)
    else:
        _load_unbound(ex, handle, image, imposed)


@answered(Op.LIBRARY_MODULE)
def library_module(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Load a library's module in the bound context."""
    handle, library_id = args
    library = ex.handles.get(HandleKind.LIBRARY, library_id)
    if library is None:
        if imposed is not None:
            raise ReplayDiverged(f"library {library_id:#x} is not there any more")
        ex.answer(INVALID_HANDLE)
        return
    load(ex, handle, ex.images[library.recipe["image"]], (ex.context, library.id), imposed)


@one_way(Op.LIBRARY_UNLOAD)
def library_unload(ex: Executor, args: Args, data: Any) -> int:
    """Unload a library's modules and forget it with its kernels."""
    library = ex.handles.get(HandleKind.LIBRARY, args[0])
    if library is None:
        return unusable(ex, args[0])
    return _drop(ex, library.id)


@one_way(Op.KERNEL_GET)
def kernel_get(ex: Executor, args: Args, data: Any) -> int:
    """Name a kernel of a library."""
    handle, library = args
    if ex.handles.get(HandleKind.LIBRARY, library) is None:
        return unusable(ex, library)
    try:
        name = bytes(data).decode()
    except UnicodeDecodeError:
        return NOT_FOUND
    ex.add_handle(HandleKind.KERNEL, handle, handle, {"name": name}, (library,))
    return 0


def _load_unbound(ex: Executor, handle: int, image: bytes, imposed: Imposed) -> None:
    """Load a library where no context is bound."""
    refused = damage(image)
    result, info = (refused[0], None) if refused else ex.driver.describe_image(image)
    if info is not None:
        _add(ex, handle, image)
        answer_with(ex, f"library {handle:#x}", describe(info), imposed)
    elif imposed is not None:
        raise ReplayDiverged(f"library {handle:#x} cannot be loaded again: error {result}")
    else:
        ex.answer(result)


def _add(ex: Executor, handle: int, image: bytes) -> None:
    ex.add_handle(HandleKind.LIBRARY, handle, handle, {"image": keep_image(ex, image)})


def _drop(ex: Executor, handle: int) -> int:
    """Forget a library and all that was made from it; return the first ``CUresult`` of that."""
    removed = ex.drop_handle(handle)
    modules = [gone.real for gone in removed if gone.kind is HandleKind.MODULE]
    results = [int(ex.cuda.cuModuleUnload(real)[0]) for real in modules]
    forget_image(ex, removed[-1].recipe["image"])
    return next((result for result in results if result), 0)
