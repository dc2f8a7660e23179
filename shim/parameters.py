"""Kernel parameters: from Python values to the packed buffer a kernel reads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from outlast.shim.failure import require
from outlast.shim.handles import as_int

#: What a packer raises when values need `convert` first.
NEEDS_CONVERSION = (struct.error, TypeError, OverflowError)

#: ctypes codes with an exact `struct` counterpart, besides the integers.
_EXACT = {"f": "f", "d": "d", "?": "?", "c": "c", "P": "Q"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}

Layout = tuple[tuple[int, int], ...]


def compile_packer(layout: Layout, types: Sequence[Any]) -> Callable[..., bytes]:
    """Return a function from one value per parameter to the parameter buffer.

    Parameters
    ----------
    layout : Layout
        (offset, size) of each parameter.
    types : Sequence[Any]
        Its ctypes type, or None if the values carry their own (ctypes instances, handles).
    """
    require(len(types) == len(layout))
    codes = []
    raw = []
    end = 0
    for index, ((offset, size), ctype) in enumerate(zip(layout, types, strict=True)):
        require(ctype is None or ctypes.sizeof(ctype) == size)
        code = _code(ctype)
        if code is None:
            raw.append((index, size, ctype))
            code = f"{size}s"
        codes.append(f"{offset - end}x{code}")
        end = offset + size
    pack = struct.Struct("<" + "".join(codes)).pack
    if not raw:
        return pack

    def pack_with_objects(*values: Any) -> bytes:
        row = list(values)
        if len(row) != len(layout):
            raise TypeError("one value per parameter is needed")
        for index, size, ctype in raw:
            row[index] = _object_bytes(row[index], size, ctype)
        return pack(*row)

    return pack_with_objects


def convert(types: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return values as the packer takes them, with C's conversions (wrapping, handles).

    Raises
    ------
    TypeError
        A value cannot become its type.
    """
    require(len(values) == len(types))
    return [
        value if _code(ctype) is None else _converted(ctype, value)
        for ctype, value in zip(types, values, strict=True)
    ]


def compile_gatherer(layout: Layout) -> Callable[[int], bytes]:
    """Return a function from the address of a C array of pointers to the parameter buffer."""
    count = len(layout)
    codes = []
    end = 0
    for offset, size in layout:
        codes.append(f"{offset - end}x{size}s")
        end = offset + size
    pack = struct.Struct("<" + "".join(codes)).pack
    unpack = struct.Struct(f"@{count}P").unpack
    sizes = [size for _, size in layout]

    def gather(address: int) -> bytes:
        if not count:
            return b""
        require(address)
        pointers = unpack(ctypes.string_at(address, count * ctypes.sizeof(ctypes.c_void_p)))
        require(all(pointers))
        return pack(*map(ctypes.string_at, pointers, sizes))

    return gather


def gather_extra(length: int, address: int) -> bytes:
    """Return the parameter buffer that a launch's ``extra`` list names."""
    word = ctypes.c_void_p
    width = ctypes.sizeof(word)
    named: dict[int, int] = {}
    while key := word.from_address(address).value:
        require(key in (1, 2))  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
        named[key] = word.from_address(address + width).value or 0
        address += 2 * width
    require(named.get(1) and named.get(2))
    require(ctypes.c_size_t.from_address(named[2]).value >= length)
    return ctypes.string_at(named[1], length)


def _code(ctype: Any) -> str | None:
    """Return the `struct` code of a simple ctypes type; None for all others."""
    kind = getattr(ctype, "_type_", None)
    if not isinstance(kind, str):
        return None
    if kind in "bhilq":
        return _SIGNED[ctypes.sizeof(ctype)]
    if kind in "BHILQ":
        return _UNSIGNED[ctypes.sizeof(ctype)]
    return _EXACT.get(kind)


def _converted(ctype: Any, value: Any) -> Any:
    if isinstance(value, ctype):
        value = value.value
    if ctype is ctypes.c_void_p:
        return as_int(value) & 0xFFFF_FFFF_FFFF_FFFF
    if not isinstance(value, int | float | bytes):
        # numpy's scalars and others that only offer a conversion
        value = value.item() if hasattr(value, "item") else as_int(value)
    return ctype(value).value


def _object_bytes(value: Any, size: int, ctype: Any) -> bytes:
    if ctype is not None and not isinstance(value, ctype):
        value = ctype(value)
    try:
        data = memoryview(value).tobytes()
    except TypeError:
        # A handle of any kind; a bare int says nothing of its size.
        if type(value) in (int, bool) or isinstance(value, float | str):
            raise TypeError(f"parameter {value!r} needs a ctypes type") from None
        data = as_int(value).to_bytes(size, "little", signed=False)
    require(len(data) == size)
    return data
