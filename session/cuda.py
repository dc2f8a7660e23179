"""The few facts of CUDA's error model that the session itself needs."""

from __future__ import annotations

from outlast.cuda_types import CUresult

#: Errors after which "the process must be terminated": they stay, as in CUDA.
STICKY = frozenset(
    int(code)
    for code in (
        CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,
        CUresult.CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
        CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
        CUresult.CUDA_ERROR_ASSERT,
        CUresult.CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
        CUresult.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUresult.CUDA_ERROR_INVALID_PC,
        CUresult.CUDA_ERROR_LAUNCH_FAILED,
    )
)


def is_sticky(result: int) -> bool:
    """Return whether a ``CUresult`` value poisons its context for good."""
    return result in STICKY
