"""Why an image cannot be loaded, with the result code that says so."""

from __future__ import annotations

from typing import ClassVar

from outlast.errors import OutlastError


class ImageError(OutlastError, ValueError):
    """The image is not PTX text."""

    cu_result: ClassVar[int] = 200  # CUDA_ERROR_INVALID_IMAGE

    def __init__(self, message: str | None = None, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line and message else message, line=line)


class NoBinaryForDevice(ImageError):
    """The image holds machine code of a GPU and no PTX; the emulated device runs PTX only."""

    cu_result = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU


class InvalidPtx(ImageError):
    """The PTX text breaks the language's rules."""

    cu_result = 218  # CUDA_ERROR_INVALID_PTX


class UnsupportedVersion(ImageError):
    """The PTX version is newer than this device reads."""

    cu_result = 222  # CUDA_ERROR_UNSUPPORTED_PTX_VERSION


class UnsupportedPtx(ImageError):
    """The emulated device does not run this instruction."""

    cu_result = 801  # CUDA_ERROR_NOT_SUPPORTED
