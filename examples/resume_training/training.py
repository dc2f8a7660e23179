"""The training loop: shuffled mini-batches up, losses down, accuracy at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import digits
import numpy as np
from classifier import BATCH, Classifier
from digits import Images
from numpy.typing import NDArray

DEFAULT_STEPS = 1500
READ_EVERY = 10  # steps


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training gave."""

    #: Loss of every step.
    losses: NDArray[np.float32]
    #: Part of the held-out images that were recognised.
    accuracy: float


def batches(images: Images, steps: int, seed: int) -> Iterator[Images]:
    """Yield ``steps`` mini-batches of `BATCH` images, shuffled anew every epoch."""
    random = np.random.default_rng((seed, 1))
    order = np.empty(0, np.int64)
    for _ in range(steps):
        if len(order) < BATCH:
            order = random.permutation(len(images))
        chosen, order = order[:BATCH], order[BATCH:]
        yield Images(images.pixels[chosen], images.labels[chosen])


def train(
    cuda: Any,
    *,
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    on_losses: Callable[[int, NDArray[np.float32]], None] = lambda first, losses: None,
) -> Trained:
    """Train a classifier on the digits.

    Parameters
    ----------
    cuda
        Anything with the functions of `cuda.bindings.driver`.
    steps
        Number of mini-batches.
    seed
        Seed of the initial parameters and of the shuffles.
    on_losses
        Called every `READ_EVERY` steps with the first step and the losses from there on.

    Raises
    ------
    CudaError
        If a CUDA call fails.
    """
    images, held_out = digits.load()
    classifier = Classifier(cuda, seed=seed, steps=steps, rows=len(held_out))
    losses = np.empty(steps, np.float32)
    first = 0
    for step, batch in enumerate(batches(images, steps, seed)):
        classifier.step(step, batch)
        last = step + 1
        if last % READ_EVERY == 0 or last == steps:
            losses[first:last] = classifier.losses(first, last)
            on_losses(first, losses[first:last])
            first = last
    accuracy = float(np.mean(classifier.predict(held_out) == held_out.labels))
    classifier.close()
    return Trained(losses, accuracy)
