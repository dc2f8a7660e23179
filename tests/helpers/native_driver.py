"""A ``libcuda.so.1`` for this process: unmodified programs run on whatever stands behind it.

Its functions are trampolines, made from a table and compiled when a test needs them, to one
Python function. That calls the function of the same name of an object that has the names and
returns of `cuda.bindings.driver`: the client API over an emulated device in this process, which
is the reference, or over a remote session.

``python -m helpers.native_driver local|remote PROGRAM``, with the folder of the library in
``LD_LIBRARY_PATH``, runs a program so.
"""

from __future__ import annotations

import ctypes
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.native_table import ENDINGS, FUNCTIONS, SPECIAL

from outlast.cuda_types import CUlaunchAttributeID
from outlast.shim.launch_config import CUlaunchAttribute, CUlaunchConfig

LIBRARY = "libcuda.so.1"
NOT_SUPPORTED = 801

_HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
typedef int (*dispatcher)(int, const uint64_t *);
static dispatcher target;
void install(dispatcher given) { target = given; }
static int call(int number, const uint64_t *values) { return target ? target(number, values) : 3; }
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    Dl_info own;
    dladdr((void *)install, &own);
    *found = dlsym(dlopen(own.dli_fname, RTLD_NOLOAD | RTLD_LAZY), name);
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
"""


def source() -> str:
    """Return the library's C code."""
    known = _all_names()
    done = {"cuGetProcAddress", "cuGetProcAddress_v2"}
    parts = [_HEAD]
    # As the driver has it: every name is there, and what it does not do it says.
    for name in [*_NAMES, *sorted(known - set(_NAMES))]:
        body, endings = f"() {{ return {NOT_SUPPORTED}; }}", ENDINGS[:1]
        if name in _COUNTS:
            endings = ENDINGS
            count, number = _COUNTS[name], _NAMES.index(name)
            given = ", ".join(f"uint64_t a{i}" for i in range(count)) or "void"
            values = ", ".join(f"a{i}" for i in range(count)) or "0"
            body = f"({given}) {{ uint64_t v[] = {{{values}}}; return call({number}, v); }}"
        for ending in endings:
            full = name + ending
            # A name that stands for itself takes other parameters.
            if full not in done and not (ending and full in known | set(_NAMES)):
                done.add(full)
                parts.append(f"int {full}{body}")
    return "\n".join(parts) + "\n"


def _all_names() -> set[str]:
    from cuda.bindings import driver

    return {name for name in dir(driver) if re.match("cu[A-Z]", name)}


def build(folder: Path) -> Path:
    """Compile the library into a folder; return the folder."""
    code = folder / "libcuda.c"
    code.write_text(source())
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(code), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


class NativeDriver:
    """Answers calls of the library by an object's functions.

    Parameters
    ----------
    api : Any
        Has the names and returns of `cuda.bindings.driver`.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        #: Texts that C has the addresses of.
        self._texts: dict[bytes, Any] = {}
        self._callback = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)
        )(self._call)
        self._calls = [self._function(name) for name in _NAMES]

    def install(self) -> None:
        """Let the library's functions come here; it must be found under its name."""
        ctypes.CDLL(LIBRARY).install(self._callback)

    @staticmethod
    def remove() -> None:
        """Let them fail from now on: what a program leaves is destroyed when Python ends."""
        ctypes.CDLL(LIBRARY).install(None)

    def _call(self, number: int, values: Any) -> int:
        return self._calls[number](values)

    def _function(self, name: str) -> Callable[[Any], int]:
        if name in SPECIAL:
            special: Callable[[Any], int] = getattr(self, f"_{name}")
            return special
        kinds, function = FUNCTIONS[name], getattr(self._api, name)

        def call(values: Any) -> int:
            given, wanted = [], []
            for index, kind in enumerate(kinds):
                if kind[0] == ">":
                    wanted.append((kind[1], values[index]))
                else:
                    given.append(_READERS[kind](values[index]))
            result, *found = function(*given)
            if not result:
                for (kind, address), value in zip(wanted, found, strict=True):
                    if address:
                        self._give(kind, address, value)
            return int(result)

        return call

    def _give(self, kind: str, address: int, value: Any) -> None:
        if kind == "s":
            text = self._texts.setdefault(value, ctypes.create_string_buffer(value))
            value = ctypes.addressof(text)
        _OUTPUTS[kind].from_address(address).value = float(value) if kind == "f" else int(value)

    def _cuDeviceGetName(self, values: Any) -> int:
        length = _READERS["i"](values[1])
        result, name = self._api.cuDeviceGetName(length, values[2])
        if not result:
            ctypes.memmove(values[0], name, min(length, len(name)))
        return int(result)

    def _cuDeviceGetUuid(self, values: Any) -> int:
        result, uuid = self._api.cuDeviceGetUuid(values[1])
        if not result:
            ctypes.memmove(values[0], uuid.bytes, 16)
        return int(result)

    def _cuCtxCreate(self, values: Any) -> int:
        """Create a context; this is the form of CUDA 13, with parameters."""
        return self._create_context(values[0], values[2], values[3])

    def _cuCtxCreate_v2(self, values: Any) -> int:
        return self._create_context(*values[:3])

    def _create_context(self, address: int, flags: int, ordinal: int) -> int:
        flags, device = _READERS["u"](flags), _READERS["i"](ordinal)
        result, context = self._api.cuCtxCreate(None, flags, device)
        if not result:
            self._give("z", address, context)
        return int(result)

    def _cuLaunchKernelEx(self, values: Any) -> int:
        given = _LaunchConfig.from_address(values[0])
        attributes = []
        for index in range(given.count):
            entry = _LaunchAttribute.from_address(given.attributes + index * _ATTRIBUTE_SIZE)
            value: Any = entry.number
            if entry.id == _CLUSTER:
                value = SimpleNamespace(x=entry.number, y=entry.second, z=entry.third)
            attributes.append(CUlaunchAttribute(entry.id, value))
        config = CUlaunchConfig(
            *given.grid, *given.block, given.shared, given.stream, attributes, given.count
        )
        return int(self._api.cuLaunchKernelEx(config, *values[1:4])[0])

    def _cuMemPoolGetAttribute(self, values: Any) -> int:
        name = _READERS["i"](values[1])
        result, value = self._api.cuMemPoolGetAttribute(values[0], name)
        if not result:
            self._give("i" if name in _REUSE else "z", values[2], value)
        return int(result)

    def _cuMemPoolSetAttribute(self, values: Any) -> int:
        name = _READERS["i"](values[1])
        kind = _OUTPUTS["i" if name in _REUSE else "z"]
        value = kind.from_address(values[2]).value
        return int(self._api.cuMemPoolSetAttribute(values[0], name, value)[0])


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
    )


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint32),
        ("_", ctypes.c_uint32),
        ("number", ctypes.c_int32),
        ("second", ctypes.c_int32),
        ("third", ctypes.c_int32),
    )


#: With the 64 bytes that its value may have.
_ATTRIBUTE_SIZE = 72
_CLUSTER = int(CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
#: Attributes of pools that are 32-bit numbers.
_REUSE = (1, 2, 3)
_NAMES = [*FUNCTIONS, *SPECIAL]
_COUNTS = {**{name: len(kinds) for name, kinds in FUNCTIONS.items()}, **SPECIAL}
_READERS: dict[str, Callable[[int], Any]] = {
    "i": lambda value: ctypes.c_int32(value).value,
    "u": lambda value: value & 0xFFFF_FFFF,
    "z": lambda value: value,
    "s": lambda value: ctypes.string_at(value) if value else b"",
}
_OUTPUTS: dict[str, Any] = {
    "i": ctypes.c_int32,
    "z": ctypes.c_uint64,
    "f": ctypes.c_float,
    "s": ctypes.c_uint64,
}


def main() -> None:
    """Run a program on a device in this process, or on the one that its environment names."""
    from outlast.shim import driver

    where, program = sys.argv[1:3]
    link = None
    if where == "local":
        from helpers.local_link import LocalLink

        from outlast.server.drivers.emulated import EmulatedDriver

        link = LocalLink(EmulatedDriver(memory=1 << 30))
        driver.use_link(link)
    native = NativeDriver(driver)
    native.install()
    sys.argv = [program]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        native.remove()
        driver.close(end=True)


if __name__ == "__main__":
    main()
