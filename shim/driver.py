"""CUDA driver API of a remote session, named and returning as `cuda.bindings.driver`.

Every function returns a tuple that begins with a `CUresult`; its other values are None
when that is an error. A program changes its import and keeps the rest::

    from outlast.shim import driver

    (result,) = driver.cuInit(0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast.shim import api_types
from outlast.shim.api import (
    context,
    context_settings,
    copy,
    copy_rows,
    device,
    error,
    event,
    function,
    host,
    host_function,
    launch,
    launch_ex,
    libraries,
    link,
    memory,
    memset,
    module,
    occupancy,
    ordered_memory,
    peer,
    pointer,
    pool,
    primary_context,
    profiler,
    stream,
)
from outlast.shim.api.context import *  # noqa: F403
from outlast.shim.api.context_settings import *  # noqa: F403
from outlast.shim.api.copy import *  # noqa: F403
from outlast.shim.api.copy_rows import *  # noqa: F403
from outlast.shim.api.device import *  # noqa: F403
from outlast.shim.api.error import *  # noqa: F403
from outlast.shim.api.event import *  # noqa: F403
from outlast.shim.api.function import *  # noqa: F403
from outlast.shim.api.host import *  # noqa: F403
from outlast.shim.api.host_function import *  # noqa: F403
from outlast.shim.api.launch import *  # noqa: F403
from outlast.shim.api.launch_ex import *  # noqa: F403
from outlast.shim.api.libraries import *  # noqa: F403
from outlast.shim.api.link import *  # noqa: F403
from outlast.shim.api.memory import *  # noqa: F403
from outlast.shim.api.memset import *  # noqa: F403
from outlast.shim.api.module import *  # noqa: F403
from outlast.shim.api.occupancy import *  # noqa: F403
from outlast.shim.api.ordered_memory import *  # noqa: F403
from outlast.shim.api.peer import *  # noqa: F403
from outlast.shim.api.pointer import *  # noqa: F403
from outlast.shim.api.pool import *  # noqa: F403
from outlast.shim.api.primary_context import *  # noqa: F403
from outlast.shim.api.profiler import *  # noqa: F403
from outlast.shim.api.stream import *  # noqa: F403
from outlast.shim.api_types import *  # noqa: F403
from outlast.shim.linkage import Link
from outlast.shim.process import process

__all__ = ["close", "statistics", "use_link"]
__all__ += api_types.__all__
__all__ += context.__all__
__all__ += context_settings.__all__
__all__ += copy.__all__
__all__ += copy_rows.__all__
__all__ += device.__all__
__all__ += error.__all__
__all__ += event.__all__
__all__ += function.__all__
__all__ += host.__all__
__all__ += host_function.__all__
__all__ += launch.__all__
__all__ += launch_ex.__all__
__all__ += libraries.__all__
__all__ += link.__all__
__all__ += memory.__all__
__all__ += memset.__all__
__all__ += module.__all__
__all__ += occupancy.__all__
__all__ += ordered_memory.__all__
__all__ += peer.__all__
__all__ += pointer.__all__
__all__ += pool.__all__
__all__ += primary_context.__all__
__all__ += profiler.__all__
__all__ += stream.__all__


def statistics() -> dict[str, Any]:
    """Return counts of what this process's link went through.

    Returns
    -------
    dict
        ``replayed_calls``, ``reconnects``, and ``stalls_s``: the seconds each lost
        connection kept the session from its server. Empty before `cuInit`.
    """
    return process.client.link.statistics() if process.client is not None else {}


def close(end: bool = False) -> None:
    """Close this process's link; calls made from now on fail.

    Parameters
    ----------
    end : bool
        End the session on the server too.
    """
    if process.client is not None:
        process.client.link.close(end)


def use_link(link: Link | Callable[[], Link] | None) -> None:
    """Make the next `cuInit` use ``link`` instead of the process's own connection.

    Everything made before is invalid from now on.

    Parameters
    ----------
    link : Link | Callable[[], Link] | None
        A link, a function that makes one, or None for the process's own connection again.
    """
    if link is None or callable(link):
        process.use(link)
    else:
        process.use(lambda: link)
