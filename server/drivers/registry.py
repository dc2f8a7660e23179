"""Devices by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigError

if TYPE_CHECKING:
    from outlast.server.drivers.base import Driver


def get_driver(name: str = "auto", **options: Any) -> Driver:
    """Return the device driver called ``name``: ``auto``, ``cuda`` or ``emulated``.

    Parameters
    ----------
    name
        One of these, or what `several` made of it.

    Raises
    ------
    ConfigError
        There is no such device here.
    """
    name, _, count = name.partition(":")
    if count:
        options["devices"] = int(count)
    if name == "cuda":
        # The worker that wants it finds out for itself what is missing.
        from outlast.server.drivers.cuda import CudaDriver

        return CudaDriver(**options)
    if require(name) == "cuda":
        return get_driver("cuda", **options)
    from outlast.server.drivers.emulated import EmulatedDriver

    return EmulatedDriver(**options)


def several(name: str, emulated: int) -> str:
    """Return the name under which `get_driver` gives so many devices, if they are emulated."""
    return f"{name}:{emulated}" if name == "emulated" and emulated > 1 else name


def require(name: str, memory: Path | None = None) -> str:
    """Return the name of the device that ``name`` means, without loading it.

    ``auto`` is ``cuda`` where CUDA finds a GPU, else ``emulated``.

    Parameters
    ----------
    name
        ``auto``, ``cuda`` or ``emulated``.
    memory
        File that remembers that there is a GPU (`probe.missing`).

    Raises
    ------
    ConfigError
        There is no such device here.
    """
    if name == "emulated":
        return name
    if name not in ("auto", "cuda"):
        raise ConfigError(f"unknown device {name!r}; known are auto, cuda and emulated")
    from outlast.server.drivers import probe

    lack = probe.missing(memory)
    if lack and name == "cuda":
        raise ConfigError(f"there is no cuda device: {lack}; --device emulated needs no GPU")
    return "emulated" if lack else "cuda"
