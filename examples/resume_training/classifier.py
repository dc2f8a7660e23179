"""A two-layer classifier whose parameters, gradients and activations live in device memory.

``cuda`` is anything with the functions of `cuda.bindings.driver`: that module itself,
`outlast.shim.driver`, or an emulated device.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from digits import CLASSES, PIXELS, Images
from numpy.typing import NDArray

PTX = Path(__file__).resolve().parent / "kernels.ptx"
HIDDEN = 128
BATCH = 64
BLOCK = 128  # threads
FLOAT = 4  # bytes

LEARNING_RATE = 2e-3
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8

#: Elements of each layer: a row of weights per input and one of biases.
LAYER1 = (PIXELS + 1) * HIDDEN
LAYER2 = (HIDDEN + 1) * CLASSES

_P, _I, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
#: Types of each kernel's parameters, as in kernels.cu.
SIGNATURES: dict[str, tuple[type, ...]] = {
    "dense_forward": (_P, _P, _P, _I, _I, _I, _I),
    "softmax_cross_entropy": (_P, _P, _P, _P, _I, _I, _I),
    "dense_backward_weights": (_P, _P, _P, _I, _I, _I),
    "dense_backward_input": (_P, _P, _P, _P, _I, _I, _I),
    "adam": (_P, _P, _P, _P, _I, _F, _F, _F, _F, _F),
    "predict": (_P, _P, _I, _I),
}


class CudaError(RuntimeError):
    """A CUDA call failed; ``result`` is its `CUresult`."""

    def __init__(self, result: Any) -> None:
        super().__init__(f"{getattr(result, 'name', 'CUDA error')} ({int(result)})")
        self.result = result


def check(answer: tuple[Any, ...]) -> Any:
    """Return the value of a CUDA call (None if it has none).

    Raises
    ------
    CudaError
        If the call failed.
    """
    result, *values = answer
    if int(result) != 0:
        raise CudaError(result)
    return values[0] if values else None


def initial_parameters(seed: int) -> NDArray[np.float32]:
    """Return both layers' weights (He-normal) and biases (0), one behind the other."""
    random = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in ((PIXELS, HIDDEN), (HIDDEN, CLASSES)):
        weights = random.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs))
        layers += [weights.ravel(), np.zeros(outputs)]
    return np.concatenate(layers).astype(np.float32)


class Classifier:
    """64 pixels -> 128 ReLU -> 10 digits, trained with Adam.

    Parameters
    ----------
    cuda
        The driver to call.
    seed
        Seed of the initial parameters.
    steps
        Most training steps that will be made (room for their losses).
    rows
        Most images in one `predict`.
    """

    def __init__(self, cuda: Any, *, seed: int, steps: int, rows: int) -> None:
        self._cuda = cuda
        check(cuda.cuInit(0))
        self._device = check(cuda.cuDeviceGet(0))
        check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(self._device))))
        self._stream = check(cuda.cuStreamCreate(0))
        self._module = check(cuda.cuModuleLoadData(PTX.read_bytes() + b"\0"))
        self._kernels: dict[str, Any] = {}
        self._buffers: list[Any] = []
        rows = max(rows, BATCH)
        self._pixels = self._allocate(rows * PIXELS)
        self._labels = self._allocate(BATCH)
        self._hidden = self._allocate(rows * HIDDEN)
        self._hidden_gradient = self._allocate(BATCH * HIDDEN)
        self._logits = self._allocate(rows * CLASSES)
        self._logits_gradient = self._allocate(BATCH * CLASSES)
        self._losses = self._allocate(steps)
        self._predictions = self._allocate(rows)
        self._parameters, self._gradient, self._first, self._second = (
            self._allocate(LAYER1 + LAYER2) for _ in range(4)
        )
        self._write(self._parameters, initial_parameters(seed))

    def step(self, step: int, batch: Images) -> None:
        """Enqueue one training step on `BATCH` images; returns before it ran."""
        rows = len(batch)
        self._write(self._pixels, batch.pixels)
        self._write(self._labels, batch.labels)
        self._forward(rows)
        self._launch(
            "softmax_cross_entropy",
            BATCH,
            *(self._logits, self._labels, self._logits_gradient, self._losses),
            *(step, rows, CLASSES),
            block=BATCH,
        )
        self._backward(rows)
        self._adam(step + 1)

    def losses(self, first: int, last: int) -> NDArray[np.float32]:
        """Wait for and return the losses of steps ``first`` to ``last - 1``."""
        return self._read(self._losses + first * FLOAT, last - first, np.float32)

    def predict(self, images: Images) -> NDArray[np.int32]:
        """Return the digit that each image most likely shows."""
        rows = len(images)
        self._write(self._pixels, images.pixels)
        self._forward(rows)
        self._launch("predict", rows, self._logits, self._predictions, rows, CLASSES)
        return self._read(self._predictions, rows, np.int32)

    def parameters(self) -> NDArray[np.float32]:
        """Return both layers' weights and biases as they are now."""
        return self._read(self._parameters, LAYER1 + LAYER2, np.float32)

    def close(self) -> None:
        """Give back the device memory, the stream and the context."""
        for buffer in self._buffers:
            check(self._cuda.cuMemFree(buffer))
        self._buffers.clear()
        check(self._cuda.cuModuleUnload(self._module))
        check(self._cuda.cuStreamDestroy(self._stream))
        check(self._cuda.cuDevicePrimaryCtxRelease(self._device))

    def _forward(self, rows: int) -> None:
        self._launch(
            "dense_forward",
            rows * HIDDEN,
            *(self._pixels, self._parameters, self._hidden),
            *(rows, PIXELS, HIDDEN, 1),
        )
        self._launch(
            "dense_forward",
            rows * CLASSES,
            *(self._hidden, self._parameters + LAYER1 * FLOAT, self._logits),
            *(rows, HIDDEN, CLASSES, 0),
        )

    def _backward(self, rows: int) -> None:
        self._launch(
            "dense_backward_weights",
            LAYER2,
            *(self._hidden, self._logits_gradient, self._gradient + LAYER1 * FLOAT),
            *(rows, HIDDEN, CLASSES),
        )
        self._launch(
            "dense_backward_input",
            rows * HIDDEN,
            *(self._hidden, self._parameters + LAYER1 * FLOAT),
            *(self._logits_gradient, self._hidden_gradient, rows, HIDDEN, CLASSES),
        )
        self._launch(
            "dense_backward_weights",
            LAYER1,
            *(self._pixels, self._hidden_gradient, self._gradient),
            *(rows, PIXELS, HIDDEN),
        )

    def _adam(self, time: int) -> None:
        self._launch(
            "adam",
            LAYER1 + LAYER2,
            *(self._parameters, self._gradient, self._first, self._second, LAYER1 + LAYER2),
            *(LEARNING_RATE / (1.0 - BETA1**time), 1.0 / (1.0 - BETA2**time)),
            *(BETA1, BETA2, EPSILON),
        )

    def _launch(self, name: str, threads: int, *arguments: float, block: int = BLOCK) -> None:
        if name not in self._kernels:
            self._kernels[name] = check(self._cuda.cuModuleGetFunction(self._module, name.encode()))
        kernel, grid = self._kernels[name], -(-threads // block)
        parameters = (arguments, SIGNATURES[name])
        check(
            self._cuda.cuLaunchKernel(
                kernel, grid, 1, 1, block, 1, 1, 0, self._stream, parameters, 0
            )
        )

    def _allocate(self, elements: int) -> int:
        """Allocate zeroed memory for numbers of 4 bytes."""
        buffer = check(self._cuda.cuMemAlloc(elements * FLOAT))
        self._buffers.append(buffer)
        check(self._cuda.cuMemsetD32Async(buffer, 0, elements, self._stream))
        return int(buffer)

    def _write(self, address: int, array: NDArray[Any]) -> None:
        check(self._cuda.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._stream))

    def _read(self, address: int, elements: int, dtype: type[np.generic]) -> NDArray[Any]:
        array = np.empty(elements, dtype)
        check(self._cuda.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._stream))
        check(self._cuda.cuStreamSynchronize(self._stream))
        return array
