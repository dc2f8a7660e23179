"""Kernel launches: the hottest call of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.registry import Args, one_way, unusable
from outlast.server.drivers.base import Shape
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


def learn(ex: Executor, calls: CallStream, args: Args, length: int) -> None:
    """Keep what the launch in hand, which went well, has meant: those like it mean the same."""
    real = ex.handles.real
    function = real[HandleKind.FUNCTION].get(args[0])
    stream = real[HandleKind.STREAM].get(args[1])
    if function is not None and stream is not None:
        prepared = ex.driver.prepare_launch(function, stream, args[2:], length)
        ex.launches.learn(calls, length, prepared)
