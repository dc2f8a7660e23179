"""The emulated CUDA device: PTX compiled for the CPU, run by one native command engine."""

from outlast.server.drivers.emulated.driver import EmulatedDriver

__all__ = ["EmulatedDriver"]
