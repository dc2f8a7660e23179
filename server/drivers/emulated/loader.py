"""Images -> modules: reading, placing and filling module variables, describing functions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from outlast import images
from outlast.cuda_types import CUfunction_attribute
from outlast.server.drivers import fatbin
from outlast.server.drivers.base import ParameterInfo
from outlast.server.drivers.emulated.lower.builder import convert_literal
from outlast.server.drivers.emulated.lower.kernel import LoweredKernel, lower_kernel
from outlast.server.drivers.emulated.lower.layout import Layout, lay_out
from outlast.server.drivers.emulated.properties import (
    COMPUTE_CAPABILITY,
    MAX_PARAMETERS,
    MAX_THREADS,
    SHARED_DEFAULT,
)
from outlast.server.drivers.emulated.ptx.nodes import Function, Immediate, Module, Symbol, Variable
from outlast.server.drivers.emulated.ptx.parser import parse
from outlast.server.drivers.emulated.ptx.problems import (
    ImageError,
    InvalidPtx,
    NoBinaryForDevice,
    UnsupportedPtx,
)

#: Programs link, load and load again the same text, in other contexts too.
KEPT_PROGRAMS = 16


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed image with its kernels lowered: nothing in it is refused any more."""

    module: Module
    kernels: tuple[Kernel, ...]
    #: Module variables in device memory, in order of declaration.
    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, ready to compile."""

    function: Function
    layout: Layout
    lowered: LoweredKernel
    attributes: dict[int, int]

    def parameters(self) -> tuple[ParameterInfo, ...]:
        """Return the places of the parameters."""
        return tuple(
            ParameterInfo(self.layout.parameters[p.name], p.size) for p in self.function.parameters
        )


def read_image(image: Any) -> str:
    """Return the PTX text of an image: its bytes, or its address in this process.

    Of a fatbin it is the text for the newest architecture that this device runs.

    Raises
    ------
    ImageError
        It has none.
    """
    try:
        text = _text_of(_whole(image))
    except images.BadImage as error:
        raise ImageError(str(error)) from error
    try:
        return text.split(b"\0", 1)[0].decode("ascii")
    except UnicodeDecodeError as error:
        raise ImageError("the image is no PTX text") from error


def _whole(image: Any) -> bytes:
    if isinstance(image, str):
        return image.encode()
    if isinstance(image, bytes | bytearray | memoryview):
        return images.complete(bytes(image))
    return images.at_address(int(image))


def _text_of(image: bytes) -> bytes:
    if image.startswith(images.ELF):
        raise NoBinaryForDevice
    if not image.startswith(images.FATBIN):
        return image
    major, minor = COMPUTE_CAPABILITY
    entries = fatbin.entries(image)
    best = fatbin.best_text(entries, 10 * major + minor)
    if best is None:
        held = sorted({e.arch for e in entries if e.kind == fatbin.Kind.PTX})
        texts = f"PTX for {', '.join(map(str, held))} only" if held else "no PTX"
        raise NoBinaryForDevice(f"the fatbin has {texts}; this device runs {major}{minor}")
    return best.unpack()


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def read_program(text: str) -> Program:
    """Parse and lower a whole PTX file; what was read last is not read again.

    Raises
    ------
    ImageError
        Something in it is wrong, or not supported.
    """
    module = parse(text)
    for variable in module.variables.values():
        if variable.extern and variable.space != "shared":
            raise InvalidPtx(f"the external variable {variable.name} is not defined")
    kernels = tuple(
        _read_kernel(module, function)
        for function in module.functions.values()
        if function.is_entry and function.body is not None
    )
    variables = tuple(v for v in module.variables.values() if v.space in ("global", "const"))
    return Program(module, kernels, variables)


def _read_kernel(module: Module, function: Function) -> Kernel:
    layout = lay_out(module, function)
    if layout.parameter_size > MAX_PARAMETERS:
        raise UnsupportedPtx(f"kernel {function.name} has too many parameters")
    lowered = lower_kernel(module, function, layout)
    return Kernel(function, layout, lowered, _attributes(module, function, layout))


def _attributes(module: Module, function: Function, layout: Layout) -> dict[int, int]:
    """Return what `cuFuncGetAttribute` answers."""
    threads = MAX_THREADS
    limits = function.directives.get(".maxntid") or function.directives.get(".reqntid")
    if limits:
        threads = 1
        for limit in limits:
            threads *= limit
    constants = sum(v.size for v in module.variables.values() if v.space == "const")
    named = CUfunction_attribute
    values = {int(attribute): 0 for attribute in named if attribute.name[-4:] != "_MAX"}
    values |= {
        named.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: min(threads, MAX_THREADS),
        named.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: layout.shared_size,
        named.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: constants,
        named.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: layout.local_size,
        named.CU_FUNC_ATTRIBUTE_NUM_REGS: min(255, max(len(function.registers), 8)),
        named.CU_FUNC_ATTRIBUTE_PTX_VERSION: module.version[0] * 10 + module.version[1],
        named.CU_FUNC_ATTRIBUTE_BINARY_VERSION: COMPUTE_CAPABILITY[0] * 10 + COMPUTE_CAPABILITY[1],
        named.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: max(
            SHARED_DEFAULT - layout.shared_size, 0
        ),
        named.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: -1,
    }
    return {int(key): value for key, value in values.items()}


def initial_bytes(variable: Variable, addresses: dict[str, int]) -> bytes:
    """Return the initial contents of a module variable, without trailing zeros.

    Raises
    ------
    ImageError
        A value names what has no address in memory.
    """
    size = variable.scalar.size
    mask = (1 << 8 * size) - 1
    found = b"".join(
        (_initial_value(value, variable, addresses) & mask).to_bytes(size, "little")
        for value in variable.initial
    )
    if len(found) > variable.size:
        raise InvalidPtx(f"too many initial values for {variable.name}")
    return found


def _initial_value(value: Immediate | Symbol, variable: Variable, addresses: dict[str, int]) -> int:
    if isinstance(value, Symbol):
        if value.name not in addresses:
            raise UnsupportedPtx(f"the address of {value.name} as an initial value")
        address = addresses[value.name] + value.offset
        if value.mask:
            return (address & value.mask) // (value.mask & -value.mask)
        return address
    if value.format and variable.scalar.is_float and value.format != variable.scalar.name:
        return convert_literal(value, variable.scalar)
    return value.value
