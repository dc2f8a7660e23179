"""The driver's calls as rules of faults see them: CUDA's names, results, and bytes copied."""

from __future__ import annotations

import dataclasses
from typing import Any

from outlast.cuda_types import CUresult

#: CUDA's names of the calls that are this driver's own.
ALIASES: dict[str, tuple[str, ...]] = {
    "launch_packed": ("cuLaunchKernel",),
    "launch_cooperative": ("cuLaunchCooperativeKernel",),
    "enqueue_write": ("cuMemcpyHtoD", "cuMemcpyHtoDAsync"),
    "enqueue_read": ("cuMemcpyDtoH", "cuMemcpyDtoHAsync"),
    "fill_rows": ("cuMemsetD2D8Async", "cuMemsetD2D16Async", "cuMemsetD2D32Async"),
    "write_rows": ("cuMemcpy2D", "cuMemcpy2DAsync"),
    "read_rows": ("cuMemcpy2D", "cuMemcpy2DAsync"),
    "copy_rows": ("cuMemcpy2D", "cuMemcpy2DAsync"),
    "allocate_at": ("cuMemAlloc", "cuMemAllocAsync"),
    "load_module_at": ("cuModuleLoadData",),
    "link": ("cuLinkComplete",),
}
LAUNCHES = ("launch_packed", "launch_cooperative", "cuLaunchKernel", "cuLaunchCooperativeKernel")
#: What stands behind the result of a call of the driver's own that fails; most have nothing.
_BEHIND: dict[str, object] = {
    "enqueue_read": memoryview(b""),
    "read_rows": memoryview(b""),
    "load_module_at": 0,
    "link": b"",
}
#: Where the bytes of a copy stand among its arguments: their number, they themselves, or rows.
_SIZES = {
    "enqueue_write": 1,
    "enqueue_read": 1,
    "write_rows": 1,
    "read_rows": 1,
    "copy_rows": 3,
}


def calls_of(driver: object) -> dict[str, tuple[str, ...]]:
    """Return the driver's methods that rules can be about, with CUDA's names of each."""
    own = {name: (name,) for name in dir(type(driver)) if name.startswith("cu")}
    return own | ALIASES


def refused(driver: object, method: str, code: int) -> Any:
    """Return what a call gives that fails."""
    if method in ALIASES:
        return (code, _BEHIND[method]) if method in _BEHIND else code
    outputs: int = getattr(type(driver), method).outputs
    return (CUresult(code), *(None,) * outputs)


def copied(method: str, args: tuple[Any, ...]) -> int:
    """Return how many bytes a call copies."""
    what = args[_size_at(method)]
    if isinstance(what, int):
        return what
    size = getattr(what, "size", None)  # rows
    return len(what) if size is None or method == "enqueue_write" else int(size)


def half(method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a copy of the first half."""
    cut = list(args)
    place = _size_at(method)
    if method in ("write_rows", "read_rows", "copy_rows"):
        rows = dataclasses.replace(args[place], count=args[place].count // 2)
        cut[place] = rows
        if method == "write_rows":
            cut[2] = args[2][: rows.size]
        if method == "copy_rows":
            cut[1] = dataclasses.replace(args[1], count=rows.count)
    elif method == "enqueue_write":
        cut[place] = args[place][: len(args[place]) // 2]
    else:
        cut[place] = int(args[place]) // 2
    return tuple(cut)


def _size_at(method: str) -> int:
    return _SIZES.get(method, 2)
