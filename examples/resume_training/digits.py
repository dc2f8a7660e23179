"""The 1,797 hand-written digits of the UCI data set, split into training and held-out images."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).resolve().parent / "digits.csv.gz"
PIXELS = 64
CLASSES = 10
BRIGHTEST = 16.0
#: Every fifth image is held out, so that both parts hold every writer's hand.
HELD_OUT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Images:
    """Images and what they show."""

    #: One row of `PIXELS` numbers from 0 to 1 per image.
    pixels: NDArray[np.float32]
    #: The digit on each image.
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


def load(path: Path = DATA) -> tuple[Images, Images]:
    """Read the images.

    Returns
    -------
    tuple[Images, Images]
        Training and held-out images; the split never changes.
    """
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int32)
    pixels = (table[:, :PIXELS] / BRIGHTEST).astype(np.float32)
    labels = np.ascontiguousarray(table[:, PIXELS])
    held_out = np.arange(len(table)) % HELD_OUT_EVERY == 0
    return (
        Images(pixels[~held_out], labels[~held_out]),
        Images(pixels[held_out], labels[held_out]),
    )
