"""Kernel launches: the hottest call of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.registry import Args, one_way, query, unusable
from outlast.server.drivers.base import Shape
from outlast.session import wire
from outlast.session.handles import HandleKind
from outlast.session.operations import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor
    from outlast.session.wire import CallStream


@one_way(Op.LAUNCH)
def launch(ex: Executor, args: Args, data: Any) -> int:
    """Launch a kernel with its packed parameter buffer."""
    real = ex.handles.real
    function = real[HandleKind.FUNCTION].get(args[0])
    stream = real[HandleKind.STREAM].get(args[1])
    if function is None or stream is None:
        return unusable(ex, args[0], args[1])
    shape: Shape = args[2:]
    return ex.driver.launch_packed(function, stream, *shape, data)


@one_way(Op.LAUNCH_COOPERATIVE)
def launch_cooperative(ex: Executor, args: Args, data: Any) -> int:
    """Launch a kernel whose blocks may wait for each other."""
    real = ex.handles.real
    function = real[HandleKind.FUNCTION].get(args[0])
    stream = real[HandleKind.STREAM].get(args[1])
    if function is None or stream is None:
        return unusable(ex, args[0], args[1])
    return ex.driver.launch_cooperative(function, stream, args[2:], data)


@query(Op.OCCUPANCY)
def occupancy(ex: Executor, args: Args) -> tuple[int, bytes]:
    """Return how many blocks run on a multiprocessor at once."""
    _, handle, block_size, flags, shared = args
    function = ex.handles.real[HandleKind.FUNCTION].get(handle)
    if function is None:
        return unusable(ex, handle) or 400, b""
    result, count = ex.driver.occupancy(function, block_size, shared, flags)
    return result, b"" if result else wire.pack_fields(Op.OCCUPANCY, count)


@query(Op.OCCUPANCY_SHARED)
def occupancy_shared(ex: Executor, args: Args) -> tuple[int, bytes]:
    """Return the dynamic shared memory that each of some blocks may have."""
    _, handle, block_size, blocks = args
    function = ex.handles.real[HandleKind.FUNCTION].get(handle)
    if function is None:
        return unusable(ex, handle) or 400, b""
    result, size = ex.driver.available_shared(function, blocks, block_size)
    return result, b"" if result else wire.pack_fields(Op.OCCUPANCY_SHARED, size)


def learn(ex: Executor, calls: CallStream, args: Args, length: int) -> None:
    """Keep what the launch in hand, which went well, has meant: those like it mean the same."""
    real = ex.handles.real
    function = real[HandleKind.FUNCTION].get(args[0])
    stream = real[HandleKind.STREAM].get(args[1])
    if function is not None and stream is not None:
        prepared = ex.driver.prepare_launch(function, stream, args[2:], length)
        ex.launches.learn(calls, length, prepared)
