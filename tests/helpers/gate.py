"""A kernel of the emulated device that goes on when it is told to, so no test measures time."""

from __future__ import annotations

import ctypes
from typing import Any

_PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry pass(.param .u64 flag, .param .u64 target, .param .u32 value)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [flag];
    ld.param.u64 %rd2, [target];
    ld.param.u32 %r1, [value];
CLOSED:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra CLOSED;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""


class Gate:
    """Kernels wait at it, on the device, until it is opened; closed at first."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._module = _checked(cuda.cuModuleLoadData(_PTX))
        self._kernel = _checked(cuda.cuModuleGetFunction(self._module, b"pass"))
        self._flag = _checked(cuda.cuMemAlloc(4))
        self._word = ctypes.c_uint32.from_address(int(self._flag))
        assert cuda.cuCtxSynchronize()[0] == 0

    def store_behind(self, target: int, value: int, stream: int = 0) -> None:
        """Launch a kernel that stores a 32-bit value once the gate is open."""
        arguments = (self._flag, target, value), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        launched = self._cuda.cuLaunchKernel(
            self._kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0
        )
        assert launched[0] == 0

    def open(self) -> None:
        """Let the kernels go on, those to come too."""
        self._word.value = 1


def _checked(returned: tuple[Any, ...]) -> Any:
    assert returned[0] == 0, returned[0]
    return returned[1]
