"""What an adopted session already holds, entered into the tables of a new process.

Handles and addresses that the dead process had written down stay valid.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from outlast.session.handles import HandleKind
from outlast.session.operations import Op
from outlast.shim.allocations import Allocation
from outlast.shim.module_info import parse_module_info
from outlast.shim.objects import (
    Context,
    Event,
    Function,
    Kernel,
    KernelInfo,
    Library,
    Module,
    Stream,
)

if TYPE_CHECKING:
    from outlast.shim.client import Client


def adopt(client: Client, inventory: dict[str, Any]) -> None:
    """Enter the objects of an inventory, each behind what it was made from."""
    for row in inventory.get("handles", []):
        kind = HandleKind(row["kind"])
        if kind is HandleKind.CONTEXT:
            _context(client, row)
        elif kind is HandleKind.FUNCTION:
            _function(client, row)
        elif kind is HandleKind.LIBRARY:
            client.libraries.add(Library(row["id"], _info(row)[0]))
        elif kind is HandleKind.KERNEL:
            _kernel(client, row)
        elif kind is HandleKind.LINK:
            client.link.send(Op.LINK_DESTROY, row["id"])  # nobody reads it to its end now
        else:
            context = client.contexts[row["parents"][0]]
            recipe = row["recipe"]
            if kind is HandleKind.MODULE:
                _module(client, row, context)
            elif kind is HandleKind.STREAM:
                stream = Stream(row["id"], context, recipe["flags"], recipe["priority"])
                client.streams.add(stream)
            else:
                recorded = bool(recipe.get("recorded"))
                client.events.add(Event(row["id"], context, recipe["flags"], recorded))
    for row in inventory.get("handles", []):
        for peer in row["recipe"].get("peers", ()):
            client.contexts[row["id"]].peers.add(client.contexts[peer])
    for row in inventory.get("allocations", []):
        context = client.contexts[row["context"]]
        client.allocations.add(Allocation(row["address"], row["size"], context))


def _context(client: Client, row: dict[str, Any]) -> None:
    recipe = row["recipe"]
    known = client.contexts.get(row["id"])
    if known is None:
        device = client.device(recipe["device"])
        known = Context(row["id"], device, recipe["flags"])
        client.contexts[row["id"]] = known
    known.alive = True
    if known.primary:
        known.retains = row["retains"]


def _info(row: dict[str, Any]) -> tuple[dict[str, KernelInfo], dict[str, tuple[int, int]]]:
    return parse_module_info(json.dumps(row["info"]).encode())


def _module(client: Client, row: dict[str, Any], context: Context) -> None:
    kernels, variables = _info(row)
    library = client.libraries.get(row["parents"][1]) if len(row["parents"]) > 1 else None
    module = Module(row["id"], context, kernels, variables, origin=library)
    client.modules.add(module)
    if library is not None:
        library.modules[context] = module
    for address, size in variables.values():
        client.allocations.add(Allocation(address, size, context, row["id"]))


def _kernel(client: Client, row: dict[str, Any]) -> None:
    library, name = client.libraries.get(row["parents"][0]), row["recipe"]["name"]
    kernel = Kernel(row["id"], library, library.infos[name])
    library.kernels[name] = kernel
    client.kernels.add(kernel)


def _function(client: Client, row: dict[str, Any]) -> None:
    module = client.modules.get(row["parents"][0])
    name = row["recipe"]["name"]
    info = module.kernels[name]
    attributes = dict(info.attributes)
    for key, value in row["recipe"].get("attributes", {}).items():
        attributes[int(key)] = value
    function = Function(row["id"], module.context, module, info, attributes)
    module.functions[name] = function
    client.functions.add(function)
