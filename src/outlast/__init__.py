"""Outlast: remote CUDA sessions that outlast the server process, the link and the crash."""

__all__ = ["__version__"]
__version__ = "0.1.0"
