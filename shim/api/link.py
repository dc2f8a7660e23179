"""Links: what is to be linked is collected here and travels at once; the image comes back.

So whatever is wrong with an input is told by `cuLinkComplete`, not when it is added.
"""

from __future__ import annotations

import ctypes
from typing import Any

from outlast.cuda_types import CUjitInputType, CUresult
from outlast.session import link_inputs
from outlast.session.link_inputs import LinkInput
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME
from outlast.session.wire import unpack_reply
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.client import Client
from outlast.shim.failure import check, require
from outlast.shim.handles import CUlinkState, as_int
from outlast.shim.host_memory import readable
from outlast.shim.image import file_bytes
from outlast.shim.modules import name_of
from outlast.shim.objects import LinkState

__all__ = [
    "cuLinkAddData",
    "cuLinkAddFile",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkDestroy",
]

_KINDS = frozenset(map(int, CUjitInputType))


@api(outputs=1)
def cuLinkCreate(numOptions: int, options: Any, optionValues: Any) -> tuple[CUresult, CUlinkState]:
    """Begin a link; options only tune the build and are not forwarded."""
    me = client()
    context = me.enter()
    require(numOptions >= 0)
    state = LinkState(me.link.new_handle(), context)
    me.links.add(state)
    return SUCCESS, CUlinkState(state.handle)


@api()
def cuLinkAddData(
    state: Any,
    typename: CUjitInputType,
    data: Any,
    size: int,
    name: bytes | str | None,
    numOptions: int,
    options: Any,
    optionValues: Any,
) -> tuple[CUresult]:
    """Add code to a link."""
    me = client()
    length = as_int(size)
    require(length > 0)
    return _add(me, state, typename, name_of(name or b""), bytes(readable(me, data, length)))


@api()
def cuLinkAddFile(
    state: Any,
    typename: CUjitInputType,
    path: bytes | str,
    numOptions: int,
    options: Any,
    optionValues: Any,
) -> tuple[CUresult]:
    """Add code from a file of this machine to a link."""
    me = client()
    return _add(me, state, typename, name_of(path), file_bytes(path))


@api(outputs=2)
def cuLinkComplete(state: Any) -> tuple[CUresult, int, int]:
    """Link, and return address and size of the image, which is there until the link's end."""
    me = client()
    context = me.enter()
    found = me.links.get(state)
    require(found.context is context, CUresult.CUDA_ERROR_INVALID_CONTEXT)
    if found.image is None:
        found.image = _complete(me, found.inputs)
    # With a zero behind it: it may be text.
    return SUCCESS, ctypes.addressof(found.image), len(found.image) - 1


@api()
def cuLinkDestroy(state: Any) -> tuple[CUresult]:
    """End a link; its image is gone."""
    me = client()
    me.links.remove(me.links.get(state))
    return OK


def _add(me: Client, state: Any, kind: Any, name: str, data: bytes) -> tuple[CUresult]:
    found = me.links.get(state)
    require(as_int(kind) in _KINDS)
    require(found.image is None, CUresult.CUDA_ERROR_INVALID_HANDLE)
    found.inputs.append(LinkInput(as_int(kind), name, data))
    return OK


def _complete(me: Client, inputs: list[LinkInput]) -> ctypes.Array[ctypes.c_char]:
    handle = me.link.new_handle()
    reply = me.link.call(Op.LINK, handle, data=link_inputs.pack(inputs))
    check(reply.result)
    (size,) = unpack_reply(Op.LINK, reply.data)
    image = bytearray()
    while len(image) < size:
        wanted = min(MAX_FRAME, size - len(image))
        part = me.link.query(Op.LINK_READ, handle, reply.value, len(image), wanted)
        check(part.result)
        (data,) = unpack_reply(Op.LINK_READ, part.data)
        require(data, CUresult.CUDA_ERROR_UNKNOWN)
        image += data
    me.link.send(Op.LINK_DESTROY, handle)
    return ctypes.create_string_buffer(bytes(image), size + 1)
