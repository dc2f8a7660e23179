"""Looks at the devices, in a process of its own: whoever looks holds the device's state.

``python -m outlast.server.doctor.examine cuda`` prints one JSON object and ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from outlast.errors import OutlastError
from outlast.server.drivers import get_driver
from outlast.server.drivers.base import Driver

#: An allocation to try things with.
PROBE = 4 << 20  # bytes


def examine(name: str) -> dict[str, Any]:
    """Return what the devices are and can do."""
    try:
        driver = get_driver(name)
    except OutlastError as error:
        # Addresses that something else has are among the reasons.
        return {"error": str(error)}
    calls: Any = driver
    try:
        version = int(calls.cuDriverGetVersion()[1])
        devices = [_device(driver, ordinal) for ordinal in range(len(driver.devices()))]
    finally:
        driver.close()
    return {"version": version, "devices": devices}


def _device(driver: Driver, ordinal: int) -> dict[str, Any]:
    info = driver.devices()[ordinal]
    calls: Any = driver  # CUDA's own names, which its class does not declare
    found: dict[str, Any] = {
        "ordinal": ordinal,
        "name": info.name,
        "uuid": info.uuid,
        "total": info.total_memory,
        "base": info.arena_base,
        "free": 0,
        "shared": "",
    }
    code, context = calls.cuDevicePrimaryCtxRetain(ordinal)
    if code:
        return {**found, "error": f"it gives no context: {code!s}"}
    calls.cuCtxSetCurrent(context)
    found["free"] = int(calls.cuMemGetInfo()[1])
    code, address = calls.cuMemAlloc(PROBE)
    if code:
        return {**found, "error": f"it gives no memory: {code!s}"}
    try:
        for piece in driver.pieces():
            os.close(driver.share(piece))
    except OutlastError as error:
        found["shared"] = str(error)
    calls.cuMemFree(address)
    return found


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
