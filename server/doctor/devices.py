"""Findings on the devices."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from outlast.errors import ConfigError
from outlast.server.doctor.finding import Finding, failure, ok, size_text, warning
from outlast.server.drivers import registry
from outlast.server.drivers.placement import CHUNK

#: Initialising CUDA takes seconds on hosts with many GPUs.
DEADLINE = 120.0  # seconds
#: Descriptors that a worker needs beside those of device memory.
OTHER_DESCRIPTORS = 200


def look(name: str, emulated: int = 1) -> tuple[list[Finding], int]:
    """Return what there is to say of the devices, and their memory in bytes.

    Parameters
    ----------
    name
        ``auto``, ``cuda`` or ``emulated``.
    emulated
        How many devices the emulated device shows.
    """
    try:
        device = registry.require(name)
    except ConfigError as error:
        return [failure("device", str(error))], 0
    found = examined(registry.several(device, emulated))
    if "error" in found:
        return [failure("device", f"{device}: {found['error']}")], 0
    memory = sum(entry["total"] for entry in found["devices"])
    findings = [ok("device", _kind(name, device, found["version"]))]
    for entry in found["devices"]:
        findings += _device(entry)
    if device == "cuda":
        findings += _descriptors(memory)
    return findings, memory


def examined(device: str) -> dict[str, Any]:
    """Return what `outlast.server.doctor.examine` finds out of the devices, in its own process."""
    command = [sys.executable, "-m", "outlast.server.doctor.examine", device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"the process that looks at it failed: {error}"}
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": f"the process that looks at it failed: {last}"}
    return found


def _kind(asked: str, device: str, version: int) -> str:
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    if device == "cuda":
        return f"{cuda} driver"
    why = "no GPU was found" if asked == "auto" else "as asked for"
    return f"emulated on the processor ({why}); programs see {cuda}"


def _device(entry: dict[str, Any]) -> Iterator[Finding]:
    what = f"device {entry['ordinal']}"
    if "error" in entry:
        yield failure(what, f"{entry['name']}: {entry['error']}")
        return
    total, free = size_text(entry["total"]), size_text(entry["free"])
    yield ok(what, f"{entry['name']}, {total}, {free} free, {entry['uuid']}")
    yield ok(what, f"addresses from {entry['base']:#x} can be had: sessions keep theirs")
    if entry["shared"]:
        yield warning(what, f"SIGUSR2 has to save like SIGTERM: {entry['shared']}")
    else:
        yield ok(what, "memory can be handed to the next server (SIGUSR2)")


def _descriptors(memory: int) -> Iterator[Finding]:
    """Yield whether there are descriptors for all memory in the smallest pieces."""
    needed = memory // CHUNK + OTHER_DESCRIPTORS
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= needed:
        yield ok("descriptors", f"{most} may be open, {needed} are needed at most")
    else:
        yield warning(
            "descriptors",
            f"{most} may be open, {needed} are needed to hand over all memory: raise "
            "LimitNOFILE (systemd) or 'ulimit -n'",
        )
