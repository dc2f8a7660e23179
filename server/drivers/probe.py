"""Whether CUDA finds a device, asked in a process of its own.

The process that asks for itself would hold CUDA's state from then on, and the gateway must
not. Run as a module it prints one line of JSON and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
#: Initialising CUDA takes seconds on hosts with many GPUs.
_DEADLINE = 60.0  # seconds


def missing(memory: Path | None = None) -> str:
    """Return why the cuda device cannot be used here; nothing if it can.

    Parameters
    ----------
    memory
        File that remembers under which boot and driver a device was found: a server that is
        started again does not look a second time.
    """
    here = _circumstances()
    if memory is not None and here and _read(memory) == here:
        return ""
    lack = _ask()
    if memory is not None and here and not lack:
        with suppress(OSError):
            memory.write_text(here)
    return lack


def _circumstances() -> str:
    """Return what tells this boot and this driver from all others; nothing if it is unknown."""
    boot, version = _read(BOOT_ID), _read(DRIVER_VERSION)
    return f"{boot}\n{version}" if boot and version else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _ask() -> str:
    command = [sys.executable, "-m", __name__]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the process that looks for a GPU failed: {error}"
    try:
        answer: str = json.loads(asked.stdout)
    except ValueError:
        return f"the process that looks for a GPU ended with exit code {asked.returncode}"
    return answer


def look() -> str:
    """Return what is missing, found out in this very process."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"the package cuda-python is not installed ({error})"
    try:
        result = driver.cuInit(0)[0]
    except RuntimeError:  # what the bindings raise when there is no libcuda
        return "there is no NVIDIA driver (libcuda.so.1) here"
    if result:
        return f"CUDA cannot be initialised: {result.name}"
    result, count = driver.cuDeviceGetCount()
    if result or not count:
        return "the NVIDIA driver finds no GPU"
    return ""


if __name__ == "__main__":
    print(json.dumps(look()))
