"""Tables of call handlers and the decorators that fill them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.session.operations import Op

if TYPE_CHECKING:
    from outlast.server.executor import Executor

Args = tuple[Any, ...]
#: Fixed fields of the OUTCOME that precedes a replayed call: (seq, result, value).
Imposed = tuple[Any, ...] | None
OneWay = Callable[["Executor", Args, Any], int]
Answered = Callable[["Executor", Args, Any, Imposed], None]
Query = Callable[["Executor", Args], tuple[int, bytes] | None]

#: Their first field is the handle they make; when they fail, it is dead from the start.
ONE_WAY_CREATES = frozenset({Op.FUNCTION_GET, Op.KERNEL_GET, Op.STREAM_CREATE, Op.EVENT_CREATE})
#: Pieces of their image came before them.
STAGED = frozenset({Op.MODULE_LOAD, Op.LIBRARY_LOAD, Op.LINK})

ONE_WAY: dict[Op, OneWay] = {}
ANSWERED: dict[Op, Answered] = {}
QUERIES: dict[Op, Query] = {}


def one_way(op: Op) -> Callable[[OneWay], OneWay]:
    """Register the handler of a one-way call."""

    def register(handler: OneWay) -> OneWay:
        ONE_WAY[op] = handler
        return handler

    return register


def answered(op: Op) -> Callable[[Answered], Answered]:
    """Register the handler of an answered call."""

    def register(handler: Answered) -> Answered:
        ANSWERED[op] = handler
        return handler

    return register


def query(op: Op) -> Callable[[Query], Query]:
    """Register the handler of a query."""

    def register(handler: Query) -> Query:
        QUERIES[op] = handler
        return handler

    return register


def unusable(executor: Executor, *handles: int) -> int:
    """Return what a call with an unknown handle among ``handles`` results in.

    What depends on an object whose creation failed is skipped: that failure has been
    reported already.
    """
    return 0 if any(h in executor.handles.dead for h in handles) else 400


def destroyed(executor: Executor, handle: int) -> int:
    """Return what it results in to destroy an unknown handle; one that never lived may go."""
    return 0 if executor.handles.bury(handle) else 400
