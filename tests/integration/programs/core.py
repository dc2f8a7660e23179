"""An unmodified program of cuda.core: compiles C++, launches it, prints what comes out."""

from __future__ import annotations

import hashlib

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = """
template<typename T>
__global__ void vector_add(const T *a, const T *b, T *c, size_t n)
{
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
"""
SIZE = 50_000


def copied(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer


device = Device()
device.set_current()
stream = device.create_stream()
major, minor = device.compute_capability
options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
program = Program(CODE, code_type="c++", options=options)
compiled = program.compile("ptx", name_expressions=("vector_add<float>",))
kernel = compiled.get_kernel("vector_add<float>")
print(device.name, major, minor)

a = np.random.default_rng(0).random(SIZE, dtype=np.float32)
b, c = 2 * a, np.zeros(SIZE, np.float32)
buffers = [device.allocate(a.nbytes, stream=stream) for _ in range(3)]
for array, buffer in ((a, buffers[0]), (b, buffers[1])):
    address = int(buffer.handle)
    copied(driver.cuMemcpyHtoDAsync(address, array.ctypes.data, a.nbytes, stream.handle))
config = LaunchConfig(grid=(SIZE + 255) // 256, block=256)
launch(stream, config, kernel, *buffers, np.uint64(SIZE))
stream.sync()
copied(driver.cuMemcpyDtoH(c.ctypes.data, int(buffers[2].handle), c.nbytes))
print(hashlib.sha256(c.tobytes()).hexdigest(), np.array_equal(c, a + b))
for buffer in buffers:
    buffer.close(stream)
stream.close()
