"""Small kernels for tests of sessions, and how the client API launches them."""

from __future__ import annotations

import ctypes
from typing import Any

from outlast.shim import driver

#: ``increment(target)`` adds 1; ``linger(duration)`` waits for so many nanoseconds.
PTX = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry increment(.param .u64 target)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [target];
    ld.global.u32 %r0, [%rd0];
    add.s32 %r1, %r0, 1;
    st.global.u32 [%rd0], %r1;
    ret;
}

.visible .entry linger(.param .u64 duration)
{
    .reg .pred %p0;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [duration];
    mov.u64 %rd1, %globaltimer;
AGAIN:
    mov.u64 %rd2, %globaltimer;
    sub.s64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p0, %rd3, %rd0;
    @%p0 bra AGAIN;
    ret;
}
"""


def check(answer: tuple[Any, ...]) -> Any:
    """Return the value of a CUDA call, which must have succeeded."""
    result, *values = answer
    assert int(result) == 0, f"CUDA error {int(result)}: {driver.last_error()}"
    return values[0] if values else None


def begin() -> None:
    """Initialise CUDA and make the primary context of device 0 current."""
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))


class Counter:
    """A number on the device that a kernel increments."""

    def __init__(self) -> None:
        module = check(driver.cuModuleLoadData(PTX.encode() + b"\0"))
        self._increment = check(driver.cuModuleGetFunction(module, b"increment"))
        self._linger = check(driver.cuModuleGetFunction(module, b"linger"))
        self.address = check(driver.cuMemAlloc(4))
        check(driver.cuMemsetD32(self.address, 0, 1))

    def increment(self) -> None:
        """Launch the kernel; does not wait for it."""
        self._launch(self._increment, (self.address,), (None,))

    def reach(self, number: int) -> None:
        """Increment once, and fail unless that makes ``number``: every call was done once."""
        self.increment()
        assert self.value() == number

    def linger(self, seconds: float) -> None:
        """Launch a kernel that takes so long; does not wait for it."""
        self._launch(self._linger, (int(seconds * 1e9),), (ctypes.c_uint64,))

    def value(self) -> int:
        """Wait for the device and read the number."""
        out = (ctypes.c_int32 * 1)()
        check(driver.cuMemcpyDtoH(ctypes.addressof(out), self.address, 4))
        return out[0]

    def _launch(self, kernel: Any, values: tuple[Any, ...], types: tuple[Any, ...]) -> None:
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, (values, types), 0))
