"""How a driver call returns: ``(CUresult, values...)``, as in `cuda.bindings.driver`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from outlast.cuda_types import CUresult

SUCCESS = CUresult.CUDA_SUCCESS
_OK = (SUCCESS,)

# The results this device gives.
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
UNSUPPORTED_LIMIT = 215
OPERATING_SYSTEM = 304
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600
PEER_ACCESS_UNSUPPORTED = 217
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED = 704, 705
CONTEXT_IS_DESTROYED = 709
NOT_SUPPORTED = 801


class Refusal(Exception):
    """A call ends with a ``CUresult`` that is no success; it never leaves the driver."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Failing(Protocol):
    def fault_code(self) -> int: ...


P = ParamSpec("P")
S = TypeVar("S", bound=_Failing)
Method = Callable[Concatenate[S, P], Any]
Call = Callable[Concatenate[S, P], tuple[Any, ...]]


def cuda_call(outputs: int = 0, *, always: bool = False) -> Callable[[Method[S, P]], Call[S, P]]:
    """Make a method a driver call.

    The method returns its outputs (None, one value, or a tuple) or raises `Refusal`.

    Parameters
    ----------
    outputs
        How many values follow the result.
    always
        The call works even when a fault has poisoned the contexts.
    """

    def decorate(method: Method[S, P]) -> Call[S, P]:
        failed = {int(result): (result, *(None,) * outputs) for result in CUresult}

        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> tuple[Any, ...]:
            if not always:
                fault = self.fault_code()
                if fault:
                    return failed[fault]
            try:
                value = method(self, *args, **kwargs)
            except Refusal as refusal:
                return failed[refusal.code]
            if outputs == 0:
                return _OK
            return (SUCCESS, value) if outputs == 1 else (SUCCESS, *value)

        vars(call)["outputs"] = outputs
        return call

    return decorate


def number(value: Any) -> int:
    """Return the number behind a handle, address or enumeration; None is 0."""
    if value is None:
        return 0
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise Refusal(INVALID_VALUE) from error


def size(value: Any) -> int:
    """Return a count of bytes or elements."""
    found = number(value)
    if not 0 <= found < 1 << 63:
        raise Refusal(INVALID_VALUE)
    return found
