"""Whether CUDA finds a device, asked in a process of its own.

The process that asks for itself would hold CUDA's state from then on, and the gateway must
not. Run as a module it prints one line of JSON and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys

#: Initialising CUDA takes seconds on hosts with many GPUs.
_DEADLINE = 60.0  # seconds


def missing() -> str:
    """Return why the cuda device cannot be used here; nothing if it can."""
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
