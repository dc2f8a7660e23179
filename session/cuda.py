"""The few facts of CUDA's error model that the session itself needs."""

from __future__ import annotations

from outlast.cuda_types import STICKY_RESULTS


def is_sticky(result: int) -> bool:
    """Return whether a ``CUresult`` value poisons its context for good."""
    return result in STICKY_RESULTS
