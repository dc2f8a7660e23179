"""What a worker tells of itself: its devices, and what its session holds."""

from __future__ import annotations

import json

from outlast.errors import RestoreFailed
from outlast.server.calls.modules import describe
from outlast.server.channel import Json
from outlast.server.drivers.base import Driver
from outlast.server.executor import Executor
from outlast.session.handles import Handle, HandleKind
from outlast.session.schema import HANDLE_STEP


def device_table(driver: Driver) -> list[Json]:
    """Return the devices as WELCOME carries them."""
    return [
        {
            "ordinal": d.ordinal,
            "name": d.name,
            "uuid": d.uuid,
            "total_memory": d.total_memory,
            "arena_base": d.arena_base,
            "arena_size": d.arena_size,
            "attributes": {str(k): v for k, v in d.attributes.items()},
            "peers": {
                str(other): {str(k): v for k, v in values.items()}
                for other, values in d.peers.items()
            },
        }
        for d in driver.devices()
    ]


def inventory(executor: Executor) -> Json:
    """Return what the session holds, for a client that adopts it."""
    return {
        "next_handle": executor.handles.next_id(HANDLE_STEP),
        "handles": [_handle(executor, h) for h in executor.handles.ordered()],
        "allocations": [
            {"address": a.address, "size": a.size, "context": a.context}
            for a in executor.allocations.values()
        ],
    }


def _handle(executor: Executor, handle: Handle) -> Json:
    row: Json = {
        "id": handle.id,
        "kind": handle.kind,
        "parents": list(handle.parents),
        "recipe": handle.recipe,
    }
    if handle.kind is HandleKind.MODULE:
        row["info"] = json.loads(describe(executor.driver.module_info(handle.real)))
    elif handle.kind is HandleKind.LIBRARY:
        result, info = executor.driver.describe_image(executor.images[handle.recipe["image"]])
        if info is None:
            raise RestoreFailed(f"library {handle.id:#x} cannot be described: error {result}")
        row["info"] = json.loads(describe(info))
    elif handle.recipe.get("primary"):
        row["retains"] = executor.retains.get(handle.recipe["device"], 0)
    return row
