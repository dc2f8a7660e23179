"""The cuda device: an NVIDIA GPU through `cuda.bindings.driver`."""

from outlast.server.drivers.cuda.driver import CudaDriver

__all__ = ["CudaDriver"]
