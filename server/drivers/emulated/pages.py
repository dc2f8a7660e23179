"""Pages of this process at addresses of our choice, through the system's own calls."""

from __future__ import annotations

import ctypes
import mmap
import os

from outlast.errors import RestoreFailed

_MAP_FIXED, _MAP_FIXED_NOREPLACE, _MAP_NORESERVE = 0x10, 0x100000, 0x4000
_PROT_NONE, _PROT_RW = 0, mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE, _SHARED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.MAP_SHARED
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def reserve(size: int, at: int) -> None:
    """Take addresses that nobody may use yet.

    Raises
    ------
    RestoreFailed
        Something lies there: only a new process can get them.
    """
    _map(size, _PROT_NONE, _PRIVATE | _MAP_FIXED_NOREPLACE, at)


def zeros(size: int) -> int:
    """Return the address of fresh memory, wherever there is room.

    Raises
    ------
    RestoreFailed
        There is none.
    """
    return _map(size, _PROT_RW, _PRIVATE, None)


def map_file(
    address: int, size: int, descriptor: int, offset: int = 0, usable: bool = True
) -> None:
    """Map a part of a file over addresses that are ours already.

    Raises
    ------
    OSError
        The system refuses; what was there may be gone.
    """
    flags = _SHARED | _MAP_FIXED | _MAP_NORESERVE
    protection = _PROT_RW if usable else _PROT_NONE
    if _libc.mmap(address, size, protection, flags, descriptor, offset) != address:
        raise _error()


def allow(address: int, size: int) -> bool:
    """Make a range readable and writable; False if the system refuses."""
    return bool(_libc.mprotect(address, size, _PROT_RW) == 0)


def give_back(address: int, size: int) -> None:
    """Give addresses back, with what is mapped there."""
    _libc.munmap(address, size)


def clear(descriptor: int, offset: int, size: int) -> None:
    """Give the memory of a part of a file back; it reads as zeros then.

    Raises
    ------
    OSError
        The system refuses.
    """
    if size and _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size):
        raise _error()


def _map(size: int, protection: int, flags: int, at: int | None) -> int:
    address = _libc.mmap(at, size, protection, flags | _MAP_NORESERVE, -1, 0)
    failed = address in (None, ctypes.c_void_p(-1).value)
    if not failed and at is not None and address != at:
        _libc.munmap(address, size)  # a kernel without FIXED_NOREPLACE took it as a hint
        failed = True
    if failed:
        where = f" at {at:#x}" if at is not None else ""
        reason = os.strerror(ctypes.get_errno())
        raise RestoreFailed(f"cannot reserve {size} bytes of addresses{where}: {reason}")
    return int(address)


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
