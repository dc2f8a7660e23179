"""Bytes of an image of code, which CUDA programs pass without a length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast import images
from outlast.cuda_types import CUresult
from outlast.shim.failure import CallFailure, require
from outlast.shim.handles import as_int


def image_bytes(image: Any) -> bytes:
    """Return the bytes of an image given as a buffer or as the address of one.

    Raises
    ------
    BadImage
        It is cut off, or there is no memory where it must be.
    TypeError
        The image is neither.
    """
    try:
        data = memoryview(image).tobytes()
    except TypeError:
        address = as_int(image)
        require(address > 0)
        data = images.at_address(address)
    require(data)
    return images.complete(data)


def file_bytes(name: Any) -> bytes:
    """Return the bytes of an image in a file of the program's own machine."""
    path = Path(name if isinstance(name, str) else bytes(name).split(b"\0", 1)[0].decode())
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CallFailure(CUresult.CUDA_ERROR_FILE_NOT_FOUND) from error
    require(data, CUresult.CUDA_ERROR_INVALID_IMAGE)
    return images.complete(data)
