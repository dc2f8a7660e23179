"""Devices behind a worker."""

from outlast.server.drivers.base import Driver
from outlast.server.drivers.registry import get_driver

__all__ = ["Driver", "get_driver"]
