"""Links: what they make goes to the client, and is forgotten when it is there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from outlast.errors import ReplayDiverged
from outlast.server.calls.modules import fingerprint, forget_image, keep_image, take_image
from outlast.server.calls.registry import Args, Imposed, answered, one_way, query, unusable
from outlast.session import link_inputs, wire
from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME

if TYPE_CHECKING:
    from outlast.server.executor import Executor

log = logging.getLogger(__name__)

INVALID_VALUE, INVALID_HANDLE, UNKNOWN = 1, 400, 999


@answered(Op.LINK)
def link(ex: Executor, args: Args, data: Any, imposed: Imposed) -> None:
    """Link, and keep the image until the client has it."""
    handle = args[0]
    inputs = link_inputs.unpack(take_image(ex, handle, data))
    result, image = ex.driver.link(inputs) if inputs is not None else (INVALID_VALUE, b"")
    if result:
        if imposed is not None:
            raise ReplayDiverged(f"link {handle:#x} cannot be made again: error {result}")
        ex.answer(result)
        return
    value = fingerprint(image)
    if imposed is not None and imposed[2] != value:
        # It matters only to a client that has read a part of it, which `link_read` tells.
        log.warning("link %#x gives another image now", handle, extra={"action": "other_link"})
    ex.add_handle(HandleKind.LINK, handle, handle, {"image": keep_image(ex, image)}, ())
    if imposed is None:
        ex.answer(0, value, wire.pack_fields(Op.LINK, len(image)))


@query(Op.LINK_READ)
def link_read(ex: Executor, args: Args) -> tuple[int, bytes]:
    """Return a part of an image."""
    _, handle, value, offset, size = args
    found = ex.handles.get(HandleKind.LINK, handle)
    if found is None or size > MAX_FRAME:
        return INVALID_HANDLE if found is None else INVALID_VALUE, b""
    image = ex.images[found.recipe["image"]]
    if fingerprint(image) != value:
        return UNKNOWN, b""
    return 0, image[offset : offset + size]


@one_way(Op.LINK_DESTROY)
def link_destroy(ex: Executor, args: Args, data: Any) -> int:
    """Forget an image."""
    found = ex.handles.get(HandleKind.LINK, args[0])
    if found is None:
        return unusable(ex, args[0])
    ex.drop_handle(found.id)
    forget_image(ex, found.recipe["image"])
    return 0
