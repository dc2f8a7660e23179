"""A timeline over fake streams."""

from __future__ import annotations

import pytest
from helpers.fake_cuda import Bench


@pytest.fixture
def bench() -> Bench:
    """A timeline over fake streams."""
    return Bench()
