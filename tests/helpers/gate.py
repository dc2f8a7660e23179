"""A kernel that goes on when it is told to, so no test measures time."""

from __future__ import annotations

import ctypes
from typing import Any

from helpers.server_process import DEVICE, ServerProcess

_NON_BLOCKING = 1

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
        assert cuda.cuMemsetD32(self._flag, 0, 1)[0] == 0
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
        ctypes.c_uint32.from_address(int(self._flag)).value = 1

    def open_in(self, server: ServerProcess) -> None:
        """Do so where the device is a server's.

        On a GPU another stream does it; the emulated device does everything in the order of
        issue, so it is done from outside.
        """
        if DEVICE == "cuda":
            stream = _checked(self._cuda.cuStreamCreate(_NON_BLOCKING))
            assert self._cuda.cuMemsetD32Async(self._flag, 1, 1, stream)[0] == 0
            assert self._cuda.cuStreamDestroy(stream)[0] == 0
            return
        for pid in server.session_workers():
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(int(self._flag))
                memory.write(bytes((1, 0, 0, 0)))


def _checked(returned: tuple[Any, ...]) -> Any:
    assert returned[0] == 0, returned[0]
    return returned[1]
