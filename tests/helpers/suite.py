"""How the kernels of ``tests/kernels/suite`` are run: each at three shapes of its launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Blocks and threads of a block: one warp, whole warps, and warps that are not whole.
SHAPES = [(1, 32), (3, 64), (2, 45)]
#: Elements; no multiple of any shape's threads.
COUNT = 301


@dataclass(frozen=True)
class Each:
    """A kernel ``(xs, ys, out, n)`` that works on an element at a time."""

    reference: Callable[[Array, Array], Array]
    #: Relative and absolute error; zero for exact results.
    relative: float = 0.0
    absolute: float = 0.0


def run_each(
    host: Any, kernel: int, shape: tuple[int, int], xs: Array, ys: Array, like: Array
) -> Array:
    """Run such a kernel; return its output."""
    out = host.put(np.zeros_like(like))
    host.run(kernel, *shape, host.put(xs), host.put(ys), out, len(xs))
    found: Array = host.get(out, like)
    return found


def check_each(found: Array, expected: Array, case: Each) -> None:
    """Compare an output with what numpy makes of the inputs."""
    if not case.relative and not case.absolute:
        assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
        return
    wide = expected.astype(np.float64)
    np.testing.assert_allclose(
        found.astype(np.float64), wide, rtol=case.relative, atol=case.absolute
    )
