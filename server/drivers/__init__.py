"""Devices behind a worker."""

from outlast.server.drivers.registry import get_driver

__all__ = ["get_driver"]
