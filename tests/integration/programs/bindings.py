"""An unmodified program of `cuda.bindings`: prints what a device made of its numbers."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
from cuda.bindings import driver as cuda

SAXPY = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .const .align 4 .f32 scale = 0f40400000;
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 a)
{
    .reg .pred %p<2>; .reg .u32 %r<6>; .reg .u64 %d<6>; .reg .f32 %f<6>;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.u32 %r1, [n];
    ld.param.f32 %f1, [a];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %d3, %r5, 4;
    add.u64 %d4, %d1, %d3;
    add.u64 %d5, %d2, %d3;
    ld.global.f32 %f2, [%d4];
    ld.global.f32 %f3, [%d5];
    ld.const.f32 %f4, [scale];
    mul.f32 %f1, %f1, %f4;
    fma.rn.f32 %f3, %f2, %f1, %f3;
    st.global.f32 [%d5], %f3;
DONE:
    ret;
}
"""
N = 10_000


def ok(answer):
    """Return what a call gives; it must have succeeded."""
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


ok(cuda.cuInit(0))
device = ok(cuda.cuDeviceGet(0))
print(ok(cuda.cuDeviceGetName(100, device)).rstrip(b"\0").decode())
print(ok(cuda.cuDeviceGetUuid(device)).bytes.hex())
threads = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
print(ok(cuda.cuDeviceGetAttribute(threads, device)), ok(cuda.cuDeviceTotalMem(device)) > 0)
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
stream = ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))

library = ok(cuda.cuLibraryLoadData(SAXPY, [], [], 0, [], [], 0))
kernel = ok(cuda.cuLibraryGetKernel(library, b"saxpy"))
module = ok(cuda.cuModuleLoadData(SAXPY))
function = ok(cuda.cuModuleGetFunction(module, b"saxpy"))
print(ok(cuda.cuModuleGetGlobal(module, b"scale"))[1], ok(cuda.cuFuncGetParamInfo(function, 3)))
print(ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 256, 0)))

rng = np.random.default_rng(1)
x, y = rng.standard_normal((2, N)).astype(np.float32)
px, py = ok(cuda.cuMemAlloc(4 * N)), ok(cuda.cuMemAllocAsync(4 * N, stream))
ok(cuda.cuMemcpyHtoDAsync(px, x.ctypes.data, 4 * N, stream))
ok(cuda.cuMemcpyHtoDAsync(py, y.ctypes.data, 4 * N, stream))
begin, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
ok(cuda.cuEventRecord(begin, stream))
parameters = ((px, py, N, 0.5), (None, None, ctypes.c_uint32, ctypes.c_float))
for _ in range(3):
    ok(cuda.cuLaunchKernel(function, 40, 1, 1, 256, 1, 1, 0, stream, parameters, 0))
ok(cuda.cuEventRecord(end, stream))
ok(cuda.cuStreamSynchronize(stream))
print(ok(cuda.cuEventElapsedTime(begin, end)) >= 0)
result = np.zeros(N, np.float32)
ok(cuda.cuMemcpyDtoH(result.ctypes.data, py, 4 * N))
print(hashlib.sha256(result.tobytes()).hexdigest(), np.allclose(result, y + 4.5 * x, atol=1e-4))

link = ok(cuda.cuLinkCreate(0, [], []))
kind = cuda.CUjitInputType.CU_JIT_INPUT_PTX
ok(cuda.cuLinkAddData(link, kind, SAXPY, len(SAXPY), b"saxpy.ptx", 0, [], []))
address, size = ok(cuda.cuLinkComplete(link))
print(hashlib.sha256(ctypes.string_at(address, size)).hexdigest())
ok(cuda.cuLinkDestroy(link))
print(cuda.cuMemFree(1 << 20)[0], cuda.cuModuleGetFunction(module, b"nothing")[0])
print(ok(cuda.cuGetErrorString(cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY)))
ok(cuda.cuMemFreeAsync(py, stream))
ok(cuda.cuMemFree(px))
ok(cuda.cuLibraryUnload(library))
ok(cuda.cuCtxSynchronize())
