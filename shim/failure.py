"""How code below an API function makes the call fail."""

from __future__ import annotations

from outlast.cuda_types import CUresult


class CallFailure(Exception):
    """Ends an API call with a ``CUresult``; never leaves `outlast.shim`."""

    def __init__(self, result: int) -> None:
        super().__init__(result)
        self.result = as_result(result)


def as_result(code: int) -> CUresult:
    """Return ``code`` as a `CUresult`; one that this version does not know is UNKNOWN."""
    try:
        return CUresult(code)
    except ValueError:
        return CUresult.CUDA_ERROR_UNKNOWN


def check(code: int) -> None:
    """Fail the call if ``code`` is an error."""
    if code:
        raise CallFailure(code)


def require(condition: object, result: CUresult = CUresult.CUDA_ERROR_INVALID_VALUE) -> None:
    """Fail the call with ``result`` unless ``condition`` holds."""
    if not condition:
        raise CallFailure(result)
