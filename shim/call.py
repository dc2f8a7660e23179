"""The frame around every API function: failures become result codes here and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from outlast.cuda_types import CUresult
from outlast.errors import OutlastError
from outlast.shim.client import Client
from outlast.shim.failure import CallFailure, as_result
from outlast.shim.process import process

P = ParamSpec("P")
R = TypeVar("R", bound=tuple[Any, ...])

SUCCESS = CUresult.CUDA_SUCCESS
#: What a function without outputs returns when all went well.
OK: tuple[CUresult] = (SUCCESS,)


def client() -> Client:
    """Return the initialised client.

    NOT_INITIALIZED before cuInit and in forked children, NOT_PERMITTED in host functions.
    """
    if process.client is None:
        raise CallFailure(CUresult.CUDA_ERROR_NOT_INITIALIZED)
    if process.client.thread.forbidden:
        raise CallFailure(CUresult.CUDA_ERROR_NOT_PERMITTED)
    return process.client


def api(outputs: int = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an API function of one that raises: failures become ``(CUresult, None, ...)``.

    Parameters
    ----------
    outputs : int
        How many values follow the result.
    """
    nothing = (None,) * outputs

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except CallFailure as failure:
                return cast(R, (failure.result, *nothing))
            except OutlastError as error:
                return cast(R, (as_result(process.report(error)), *nothing))

        return call

    return decorate
