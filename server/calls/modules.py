"""Modules and functions."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from outlast import images
from outlast.errors import ReplayDiverged
from outlast.server.calls.registry import Args, Imposed, answered, one_way, unusable
from outlast.server.drivers.base import ModuleInfo
from outlast.session.handles import HandleKind
from outlast.session.operations import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor


log = logging.getLogger(__name__)

OUT_OF_MEMORY = 2


def describe(info: ModuleInfo) -> bytes:
    """Return what the client is told of a module, as JSON."""
    functions = [
        {
            "name": f.name,
            "parameters": [[p.offset, p.size] for p in f.parameters],
            "attributes": {str(k): v for k, v in sorted(f.attributes.items())},
        }
        for f in info.functions
    ]
    variables = [{"name": g.name, "address": g.address, "size": g.size} for g in info.globals]
    return json.dumps({"functions": functions, "globals": variables}).encode()


def fingerprint(description: bytes) -> int:
    """Return 64 bits that tell two module descriptions apart: addresses must not move."""
    return int.from_bytes(blake3(description).digest(8), "little")


def damage(image: bytes) -> tuple[int, int] | None:
    """Return the answer to a load that a device must not see: it would read what is not there.

    CUDA takes images without a length, and follows the pointer of a wrapper, which is one of the
    client's memory.
    """
    try:
        if image.startswith(images.WRAPPER):
            raise images.BadImage("the image is a wrapper, whose fatbin is on another machine")
        images.check_length(image)
    except images.BadImage as error:
        log.warning("An image was refused: %s.", error, extra={"action": "image_refused"})
        return error.cu_result, 0
    return None


@one_way(Op.IMAGE_PART)
def image_part(ex: Executor, args: Args, data: Any) -> int:
    """Keep a piece of an image until its load comes."""
    staged = ex.staged.setdefault(args[0], bytearray())
    if len(staged) + len(data) > images.MAX_IMAGE:
        return OUT_OF_MEMORY
    staged += bytes(data)
    return 0


@answered(Op.MODULE_LOAD)
def module_load(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Load an image; the answer carries its functions and globals."""
    handle = args[0]
    load(ex, handle, take_image(ex, handle, data), (ex.context,), imposed)


def take_image(ex: Executor, handle: int, data: Any) -> bytes:
    """Return an image whose last piece has come."""
    return bytes(ex.staged.pop(handle, b"")) + bytes(data)


def load(
    ex: Executor, handle: int, image: bytes, parents: tuple[int, ...], imposed: Imposed
) -> bool:
    """Load a module in the bound context and answer the call; return whether it is there."""
    result, real = damage(image) or ex.cuda.cuModuleLoadData(image)
    if result:
        if imposed is not None:
            raise ReplayDiverged(f"module {handle:#x} cannot be loaded again: error {int(result)}")
        ex.answer(int(result))
        return False
    description = describe(ex.driver.module_info(int(real)))
    ex.add_handle(HandleKind.MODULE, handle, int(real), {"image": keep_image(ex, image)}, parents)
    answer_with(ex, f"module {handle:#x}", description, imposed)
    return True


def answer_with(ex: Executor, what: str, description: bytes, imposed: Imposed) -> None:
    """Answer a load with a description, which must be the same in each replay."""
    value = fingerprint(description)
    if imposed is None:
        ex.answer(0, value, description)
    elif imposed[2] != value:
        raise ReplayDiverged(f"{what} came back with other functions or addresses")


def keep_image(ex: Executor, image: bytes) -> str:
    """Keep an image for restores; return its digest."""
    digest = blake3(image).hexdigest()
    ex.images[digest] = image
    return digest


def forget_image(ex: Executor, digest: str) -> None:
    """Forget an image that nothing was made from any more."""
    if not any(handle.recipe.get("image") == digest for handle in ex.handles.ordered()):
        ex.images.pop(digest, None)


@one_way(Op.MODULE_UNLOAD)
def module_unload(ex: Executor, args: Args, data: Any) -> int:
    """Unload a module and forget its functions."""
    module = ex.handles.get(HandleKind.MODULE, args[0])
    if module is None:
        return unusable(ex, args[0])
    (result,) = ex.cuda.cuModuleUnload(module.real)
    ex.drop_handle(module.id)
    forget_image(ex, module.recipe["image"])
    return int(result)


@one_way(Op.FUNCTION_GET)
def function_get(ex: Executor, args: Args, data: Any) -> int:
    """Name a function of a module."""
    handle, module_id = args
    module = ex.handles.get(HandleKind.MODULE, module_id)
    if module is None:
        return unusable(ex, module_id)
    try:
        name = bytes(data).decode()
    except UnicodeDecodeError:
        return 500
    result, real = ex.cuda.cuModuleGetFunction(module.real, name.encode())
    if result:
        return int(result)
    ex.add_handle(HandleKind.FUNCTION, handle, int(real), {"name": name}, (module.id,))
    return 0


@answered(Op.FUNCTION_SET_ATTRIBUTE)
def function_set_attribute(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Set an attribute of a function; it is part of the function's recipe."""
    handle, attribute, value = args
    function = ex.handles.get(HandleKind.FUNCTION, handle)
    result = 400
    if function is not None:
        result = int(ex.cuda.cuFuncSetAttribute(function.real, attribute, value)[0])
    if result == 0 and function is not None:
        # One of its own: an epoch that is being written has the one before.
        known = function.recipe.get("attributes", {})
        function.recipe["attributes"] = {**known, str(attribute): value}
    if imposed is None:
        ex.answer(result)
    elif result:
        raise ReplayDiverged(f"function {handle:#x} refuses its attribute: error {result}")
