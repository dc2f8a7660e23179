"""Devices by name."""

from __future__ import annotations

import pytest

from outlast.errors import ConfigError
from outlast.server.drivers import get_driver


def test_auto_is_the_emulated_device() -> None:
    driver = get_driver("auto", base=0x1700_0000_0000, arena_size=8 << 30)
    assert driver.name == "emulated"
    driver.close()


@pytest.mark.parametrize("name", ["cuda", "opencl"])
def test_a_device_that_this_version_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="emulated"):
        get_driver(name)
