"""A fake link under the client API, and the usual first calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fake_link import FakeLink

from outlast.shim import driver


@pytest.fixture
def link() -> Iterator[FakeLink]:
    """A link that the next cuInit uses; two devices."""
    fake = FakeLink(devices=2)
    driver.use_link(fake)
    yield fake
    driver.use_link(None)


@pytest.fixture
def context(link: FakeLink) -> int:
    """An initialised client with device 0's primary context current."""
    assert driver.cuInit(0) == (0,)
    _, handle = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(handle)
    return handle
