"""Names and texts of results, and what lies behind a failed call. They work without cuInit."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import ERROR_TEXTS, CUresult
from outlast.errors import OutlastError
from outlast.shim.call import SUCCESS, api
from outlast.shim.failure import require
from outlast.shim.handles import as_int
from outlast.shim.process import process

__all__ = [
    "cuGetErrorName",
    "cuGetErrorString",
    "last_error",
]


@api(outputs=1)
def cuGetErrorName(error: Any) -> tuple[CUresult, bytes]:
    """Return the name of a result."""
    return SUCCESS, _known(error).name.encode()


@api(outputs=1)
def cuGetErrorString(error: Any) -> tuple[CUresult, bytes]:
    """Return the description of a result."""
    return SUCCESS, ERROR_TEXTS[_known(error)].encode()


def last_error() -> OutlastError | None:
    """Return the latest error of the link that ended a call of this process, if any."""
    return process.last_error


def _known(error: Any) -> CUresult:
    require(as_int(error) in ERROR_TEXTS)
    return CUresult(as_int(error))
