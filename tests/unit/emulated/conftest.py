"""A device for each test module, and a small host program's helpers around it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.drivers.emulated.jit import Jit

KERNELS = Path(__file__).parents[2] / "kernels"
#: Far from the product's address, so that a test's device never meets another one.
TEST_BASE = 0x1800_0000_0000
TEST_ARENA = 64 << 30

MakeDriver = Callable[..., EmulatedDriver]


def check(returned: tuple[Any, ...]) -> Any:
    """Return the values of a driver call that must succeed."""
    assert returned[0] == 0, returned[0]
    return returned[1] if len(returned) == 2 else returned[1:]


class Host:
    """A program that uses a device."""

    def __init__(self, cuda: EmulatedDriver) -> None:
        self.cuda = cuda
        check(cuda.cuInit(0))
        self.context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
        check(cuda.cuCtxSetCurrent(self.context))
        self.modules: dict[str, int] = {}

    def module(self, name: str) -> int:
        """Return one of the test modules, loaded once."""
        if name not in self.modules:
            image = (KERNELS / f"{name}.ptx").read_bytes()
            self.modules[name] = check(self.cuda.cuModuleLoadData(image))
        return self.modules[name]

    def kernel(self, name: str, module: str = "common") -> int:
        """Return a kernel of a test module."""
        return int(check(self.cuda.cuModuleGetFunction(self.module(module), name.encode())))

    def assemble(self, body: str, parameters: str = ".param .u64 out", name: str = "k") -> int:
        """Return a kernel written in PTX; ``%o`` holds its first parameter as a pointer."""
        text = f"""
            .version 8.0
            .target sm_80
            .address_size 64
            .visible .entry {name}({parameters})
            {{
                .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<16>;
                .reg .f32 %f<16>; .reg .f64 %g<8>; .reg .b64 %o;
                ld.param.u64 %o, [out];
                {body}
                ret;
            }}
        """
        module = check(self.cuda.cuModuleLoadData(text.encode()))
        return int(check(self.cuda.cuModuleGetFunction(module, name.encode())))

    def put(self, array: NDArray[Any]) -> int:
        """Return device memory with a copy of ``array``."""
        address = check(self.cuda.cuMemAlloc(array.nbytes))
        check(self.cuda.cuMemcpyHtoD(address, np.ascontiguousarray(array), array.nbytes))
        return int(address)

    def get(self, address: int, like: NDArray[Any]) -> NDArray[Any]:
        """Return device memory as an array of the shape and type of ``like``."""
        found = np.empty_like(like)
        check(self.cuda.cuMemcpyDtoH(found, address, found.nbytes))
        return found

    def launch(
        self,
        kernel: int,
        grid: int | tuple[int, int, int],
        block: int | tuple[int, int, int],
        *arguments: Any,
        shared: int = 0,
        stream: int = 0,
    ) -> Any:
        """Launch a kernel; a large integer is an address, a small one a 32-bit number."""
        g = (grid, 1, 1) if isinstance(grid, int) else grid
        b = (block, 1, 1) if isinstance(block, int) else block
        kinds = [_kind(argument) for argument in arguments]
        return self.cuda.cuLaunchKernel(
            kernel, *g, *b, shared, stream, (arguments, tuple(kinds)), 0
        )[0]

    def run(self, kernel: int, grid: Any, block: Any, *arguments: Any, shared: int = 0) -> None:
        """Launch a kernel and wait for it."""
        assert self.launch(kernel, grid, block, *arguments, shared=shared) == 0
        check(self.cuda.cuCtxSynchronize())


def _kind(argument: Any) -> Any:
    if isinstance(argument, float):
        return ctypes.c_float
    if isinstance(argument, int):
        return ctypes.c_void_p if argument >= 1 << 32 else ctypes.c_int
    return None


@pytest.fixture(scope="session")
def jit(tmp_path_factory: pytest.TempPathFactory) -> Jit:
    return Jit(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def make_driver(jit: Jit) -> Iterator[MakeDriver]:
    """Make devices that can live side by side; they are closed at the end."""
    made: list[EmulatedDriver] = []

    def make(**options: Any) -> EmulatedDriver:
        options.setdefault("base", TEST_BASE + 4 * TEST_ARENA * len(made))
        options.setdefault("arena_size", TEST_ARENA)
        options.setdefault("jit", jit)
        made.append(EmulatedDriver(**options))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture(scope="module")
def host(make_driver: MakeDriver) -> Host:
    return Host(make_driver(capture_output=True))


@pytest.fixture
def make_host(make_driver: MakeDriver) -> Callable[..., Host]:
    """Make programs with a device of their own."""
    return lambda **options: Host(make_driver(capture_output=True, **options))


@pytest.fixture
def fresh(make_host: Callable[..., Host]) -> Iterator[Host]:
    """A device of its own, for tests that break it."""
    host = make_host()
    yield host
    host.cuda.close()


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)
