"""The example's kernels and training against numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import compile as kernel_compiler
import digits
import numpy as np
import pytest
from classifier import (
    BETA1,
    BETA2,
    EPSILON,
    HIDDEN,
    LAYER1,
    LEARNING_RATE,
    PTX,
    SIGNATURES,
    CudaError,
    check,
    initial_parameters,
)
from digits import CLASSES, PIXELS
from numpy.typing import NDArray
from training import batches, train

from outlast.server.drivers.emulated import EmulatedDriver

Array = NDArray[Any]
ROWS, INPUTS, OUTPUTS = 21, 13, 7  # no multiple of a block, so that the edges are tested
STREAM = 0


@dataclass(frozen=True)
class Kernels:
    """Runs single kernels on an emulated device."""

    cuda: Any
    module: Any

    def run(self, name: str, arguments: tuple[Any, ...], threads: int, block: int = 64) -> None:
        """Launch a kernel; arrays are copied to the device before it and back after it."""
        cuda = self.cuda
        values: list[Any] = []
        buffers: list[tuple[Array, int]] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                address = int(check(cuda.cuMemAlloc(argument.nbytes)))
                check(cuda.cuMemcpyHtoD(address, argument.ctypes.data, argument.nbytes))
                buffers.append((argument, address))
                values.append(address)
            else:
                values.append(argument)
        kernel = check(cuda.cuModuleGetFunction(self.module, name.encode()))
        grid = -(-threads // block)
        parameters = (tuple(values), SIGNATURES[name])
        check(cuda.cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, STREAM, parameters, 0))
        for array, address in buffers:
            check(cuda.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
            check(cuda.cuMemFree(address))


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    driver = EmulatedDriver()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def kernels(cuda: Any) -> Kernels:
    check(cuda.cuInit(0))
    device = check(cuda.cuDeviceGet(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(device))))
    return Kernels(cuda, check(cuda.cuModuleLoadData(PTX.read_bytes() + b"\0")))


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.normal(size=shape).astype(np.float32)


def close(actual: Array, expected: Array) -> bool:
    return np.allclose(actual, expected, rtol=2e-5, atol=2e-6)


def softmax(logits: Array) -> Array:
    exponentials: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
    sums: Array = exponentials.sum(axis=1, keepdims=True)
    return np.divide(exponentials, sums)


def cross_entropy(logits: Array, labels: Array) -> float:
    return float(-np.mean(np.log(softmax(logits)[np.arange(len(labels)), labels])))


@pytest.mark.parametrize("relu", [0, 1])
def test_forward_multiplies_adds_the_bias_row_and_cuts_with_relu(
    kernels: Kernels, random: np.random.Generator, relu: int
) -> None:
    input_, weights = normal(random, ROWS, INPUTS), normal(random, INPUTS + 1, OUTPUTS)
    output = np.zeros((ROWS, OUTPUTS), np.float32)
    arguments = (input_, weights, output, ROWS, INPUTS, OUTPUTS, relu)
    kernels.run("dense_forward", arguments, ROWS * OUTPUTS)
    expected = input_.astype(np.float64) @ weights[:-1] + weights[-1]
    assert close(output, np.maximum(expected, 0) if relu else expected)
    assert (output == 0).any() == bool(relu)


def test_loss_and_its_gradient_are_those_of_numpy(
    kernels: Kernels, random: np.random.Generator
) -> None:
    logits = 10 * normal(random, ROWS, CLASSES)
    labels = random.integers(0, CLASSES, ROWS).astype(np.int32)
    gradient, losses = np.zeros((ROWS, CLASSES), np.float32), np.zeros(3, np.float32)
    arguments = (logits, labels, gradient, losses, 1, ROWS, CLASSES)
    kernels.run("softmax_cross_entropy", arguments, 64)
    wide = logits.astype(np.float64)
    assert close(gradient, (softmax(wide) - np.eye(CLASSES)[labels]) / ROWS)
    assert losses[1] == pytest.approx(cross_entropy(wide, labels), rel=1e-5)
    assert losses[0] == losses[2] == 0


def test_loss_stays_finite_for_huge_logits(kernels: Kernels) -> None:
    logits = np.array([[1e30, 0.0], [-1e30, 1e30]], np.float32)
    labels = np.array([0, 1], np.int32)
    gradient, losses = np.ones((2, 2), np.float32), np.ones(1, np.float32)
    kernels.run("softmax_cross_entropy", (logits, labels, gradient, losses, 0, 2, 2), 64)
    assert losses[0] == 0
    assert not gradient.any()


def test_weight_gradient_sums_over_the_batch_and_includes_the_bias(
    kernels: Kernels, random: np.random.Generator
) -> None:
    input_, output_gradient = normal(random, ROWS, INPUTS), normal(random, ROWS, OUTPUTS)
    gradient = np.zeros((INPUTS + 1, OUTPUTS), np.float32)
    arguments = (input_, output_gradient, gradient, ROWS, INPUTS, OUTPUTS)
    kernels.run("dense_backward_weights", arguments, gradient.size)
    padded = np.hstack([input_, np.ones((ROWS, 1))]).astype(np.float64)
    assert close(gradient, padded.T @ output_gradient)


def test_input_gradient_passes_only_where_relu_did(
    kernels: Kernels, random: np.random.Generator
) -> None:
    input_ = np.maximum(normal(random, ROWS, INPUTS), 0)
    weights = normal(random, INPUTS + 1, OUTPUTS)
    output_gradient = normal(random, ROWS, OUTPUTS)
    gradient = np.ones((ROWS, INPUTS), np.float32)
    arguments = (input_, weights, output_gradient, gradient, ROWS, INPUTS, OUTPUTS)
    kernels.run("dense_backward_input", arguments, gradient.size)
    expected = output_gradient.astype(np.float64) @ weights[:-1].T
    assert close(gradient, np.where(input_ > 0, expected, 0))


def test_adam_makes_the_steps_of_its_paper(kernels: Kernels, random: np.random.Generator) -> None:
    count = 333
    parameters = normal(random, count)
    reference = NumpyAdam(parameters.astype(np.float64))
    first, second = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for time in range(1, 6):
        gradient = normal(random, count)
        rate, correction = LEARNING_RATE / (1 - BETA1**time), 1 / (1 - BETA2**time)
        arguments = (parameters, gradient, first, second, count, rate, correction)
        kernels.run("adam", (*arguments, BETA1, BETA2, EPSILON), count)
        reference.step(gradient)
    assert close(parameters, reference.parameters)


def test_predict_takes_the_first_of_the_largest_logits(
    kernels: Kernels, random: np.random.Generator
) -> None:
    logits = random.integers(-3, 3, (ROWS, CLASSES)).astype(np.float32)
    predictions = np.full(ROWS, -1, np.int32)
    kernels.run("predict", (logits, predictions, ROWS, CLASSES), ROWS)
    assert np.array_equal(predictions, logits.argmax(axis=1))


def test_every_kernel_of_the_ptx_has_a_signature_of_its_length() -> None:
    parameters = {
        entry.split("(")[0]: entry.split(")")[0].count(".param")
        for entry in PTX.read_text().split(".visible .entry ")[1:]
    }
    assert parameters == {name: len(types) for name, types in SIGNATURES.items()}
    assert {t for types in SIGNATURES.values() for t in types} == {
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
    }


class NumpyAdam:
    """Adam in double precision."""

    def __init__(self, parameters: Array) -> None:
        self.parameters = parameters
        self._first = np.zeros_like(parameters)
        self._second = np.zeros_like(parameters)
        self._time = 0

    def step(self, gradient: Array) -> None:
        self._time += 1
        self._first = BETA1 * self._first + (1 - BETA1) * gradient
        self._second = BETA2 * self._second + (1 - BETA2) * gradient.astype(np.float64) ** 2
        mean = self._first / (1 - BETA1**self._time)
        variance = self._second / (1 - BETA2**self._time)
        self.parameters -= LEARNING_RATE * mean / (np.sqrt(variance) + EPSILON)


class NumpyClassifier:
    """The example's network in double precision."""

    def __init__(self, seed: int) -> None:
        self._adam = NumpyAdam(initial_parameters(seed).astype(np.float64))

    def step(self, batch: digits.Images) -> float:
        """Make one training step; return its loss."""
        _, layer2 = self._layers()
        hidden, logits = self._forward(batch.pixels)
        rows = len(batch)
        logits_gradient = (softmax(logits) - np.eye(CLASSES)[batch.labels]) / rows
        hidden_gradient = np.where(hidden > 0, logits_gradient @ layer2[:-1].T, 0)
        bias = np.ones((rows, 1))
        gradients = [
            np.hstack([batch.pixels, bias]).T @ hidden_gradient,
            np.hstack([hidden, bias]).T @ logits_gradient,
        ]
        self._adam.step(np.concatenate([gradient.ravel() for gradient in gradients]))
        return cross_entropy(logits, batch.labels)

    def accuracy(self, images: digits.Images) -> float:
        """Return the part of the images that is recognised."""
        return float(np.mean(self._forward(images.pixels)[1].argmax(axis=1) == images.labels))

    def _layers(self) -> tuple[Array, Array]:
        parameters = self._adam.parameters
        return (
            parameters[:LAYER1].reshape(PIXELS + 1, HIDDEN),
            parameters[LAYER1:].reshape(HIDDEN + 1, CLASSES),
        )

    def _forward(self, pixels: Array) -> tuple[Array, Array]:
        layer1, layer2 = self._layers()
        hidden = np.maximum(pixels @ layer1[:-1] + layer1[-1], 0)
        return hidden, hidden @ layer2[:-1] + layer2[-1]


def test_training_follows_the_loss_curve_of_numpy_and_learns_the_digits(cuda: Any) -> None:
    steps = 300
    images, held_out = digits.load()
    reference = NumpyClassifier(seed=3)
    expected = np.array([reference.step(batch) for batch in batches(images, steps, seed=3)])
    trained = train(cuda, steps=steps, seed=3)
    # Single precision drifts slowly away from double: Adam divides by small numbers.
    assert np.allclose(trained.losses[:50], expected[:50], rtol=1e-4)
    assert np.allclose(trained.losses, expected, rtol=2e-2, atol=1e-4)
    assert trained.accuracy > 0.95
    assert trained.accuracy == pytest.approx(reference.accuracy(held_out), abs=0.005)


def test_two_trainings_with_one_seed_give_the_same_bits_and_another_seed_does_not(
    cuda: Any,
) -> None:
    first, second, other = (train(cuda, steps=25, seed=seed).losses for seed in (5, 5, 6))
    assert first.tobytes() == second.tobytes()
    assert first.tobytes() != other.tobytes()


def test_losses_are_reported_every_ten_steps_and_at_the_end(cuda: Any) -> None:
    reports: list[tuple[int, int]] = []
    train(cuda, steps=25, on_losses=lambda first, losses: reports.append((first, len(losses))))
    assert reports == [(0, 10), (10, 10), (20, 5)]


def test_images_are_all_there_and_the_parts_share_none() -> None:
    images, held_out = digits.load()
    assert (len(images), len(held_out)) == (1437, 360)
    pixels = np.concatenate([images.pixels, held_out.pixels])
    assert pixels.shape == (1797, PIXELS)
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)
    counts = np.bincount(np.concatenate([images.labels, held_out.labels]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_failed_call_raises_with_its_result() -> None:
    with pytest.raises(CudaError) as failure:
        check((2, 0))
    assert failure.value.result == 2


def test_checked_in_ptx_is_what_the_source_compiles_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert kernel_compiler.main(["--check"]) == 0
    said = capsys.readouterr().out
    assert said == "kernels.ptx is up to date\n" or said.startswith("skipped: NVRTC")
