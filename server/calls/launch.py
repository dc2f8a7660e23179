"""Kernel launches: the hottest call of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.server.calls.registry import Args, one_way, unusable
from outlast.session.handles import HandleKind
from outlast.session.schema import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor


@one_way(Op.LAUNCH)
def launch(ex: Executor, args: Args, data: Any) -> int:
    """Launch a kernel with its packed parameter buffer."""
    real = ex.handles.real
    function = real[HandleKind.FUNCTION].get(args[0])
    stream = real[HandleKind.STREAM].get(args[1])
    if function is None or stream is None:
        return unusable(ex, args[0], args[1])
    return ex.driver.launch_packed(
        function,
        stream,
        args[2],
        args[3],
        args[4],
        args[5],
        args[6],
        args[7],
        args[8],
        data,
    )
