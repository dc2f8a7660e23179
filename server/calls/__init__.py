"""The calls a worker knows, by operation; one module a family of CUDA functions.

`ONE_WAY` handlers return a ``CUresult`` value. `ANSWERED` handlers answer the call (or
leave a wait that does), unless an outcome is imposed. `QUERIES` return ``(result, data)``
or None when they left a wait.
"""

from outlast.server.calls import (
    contexts,
    events,
    launch,
    libraries,
    linking,
    memory,
    modules,
    ordered_memory,
    rows,
    streams,
)
from outlast.server.calls.registry import ANSWERED, ONE_WAY, QUERIES

__all__ = [
    "ANSWERED",
    "ONE_WAY",
    "QUERIES",
    "contexts",
    "events",
    "launch",
    "libraries",
    "linking",
    "memory",
    "modules",
    "ordered_memory",
    "rows",
    "streams",
]
