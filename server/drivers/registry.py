"""Devices by name."""

from __future__ import annotations

from typing import Any

from outlast.errors import ConfigError
from outlast.server.drivers.base import Driver


def get_driver(name: str = "auto", **options: Any) -> Driver:
    """Return the device driver called ``name``: ``auto``, ``cuda`` or ``emulated``.

    Raises
    ------
    ConfigError
        This version has no such device.
    """
    require(name)
    from outlast.server.drivers.emulated import EmulatedDriver

    return EmulatedDriver(**options)


def require(name: str) -> None:
    """Check that there is a device called ``name`` without loading it.

    Raises
    ------
    ConfigError
        This version has no such device.
    """
    if name == "cuda":
        raise ConfigError("this version has only the emulated device; use --device emulated")
    if name not in ("auto", "emulated"):
        raise ConfigError(f"unknown device {name!r}; known are auto, cuda and emulated")
