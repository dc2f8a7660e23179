"""The switch of profilers. There is none that would look."""

from __future__ import annotations

from outlast.cuda_types import CUresult
from outlast.shim.call import OK, api, client

__all__ = [
    "cuProfilerStart",
    "cuProfilerStop",
]


@api()
def cuProfilerStart() -> tuple[CUresult]:
    """Let a profiler begin."""
    client().context()
    return OK


@api()
def cuProfilerStop() -> tuple[CUresult]:
    """Let a profiler end."""
    client().context()
    return OK
