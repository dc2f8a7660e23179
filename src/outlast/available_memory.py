"""How much memory this process may still take, by what the system and its control groups say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: What reading these files raises where the system writes other ones, or none.
_UNKNOWN = (OSError, ValueError, IndexError)

PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Names:
    """The files of a control group's memory, which differ from version to version."""

    limit: str
    usage: str
    #: Line of ``memory.stat`` with what is given back when memory is needed.
    cache: str


_FIRST = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Names("memory.max", "memory.current", "inactive_file")


def available_memory(proc: Path = PROC, control_groups: Path = CONTROL_GROUPS) -> int | None:
    """Return the bytes that this process may still take; None if nothing is known.

    That is the least of what the system has available, what each control group above the
    process leaves, and what its own limit on addresses leaves. It is a moment's figure:
    others take memory too.
    """
    left = [*_system(proc), *_groups(proc, control_groups), *_addresses(proc)]
    return max(0, min(left)) if left else None


def _system(proc: Path) -> Iterator[int]:
    with suppress(*_UNKNOWN):
        yield _entry(proc / "meminfo", "MemAvailable:") << 10


def _groups(proc: Path, root: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for base in (root, root / "unified"):
                yield from _upwards(base, path, _SECOND)
        elif "memory" in controllers.split(","):
            yield from _upwards(root / "memory", path, _FIRST)


def _upwards(base: Path, path: str, names: _Names) -> Iterator[int]:
    """Yield what a group and those above it leave.

    In a container the path may be one that only the host has; the group is the root then.
    """
    below = Path(path.lstrip("/"))
    if ".." in below.parts:
        below = Path()
    for folder in (base / below, *(base / parent for parent in below.parents)):
        with suppress(*_UNKNOWN):
            limit = int((folder / names.limit).read_text())  # "max" is none
            usage = int((folder / names.usage).read_text())
            with suppress(*_UNKNOWN):
                usage -= _entry(folder / "memory.stat", names.cache)
            yield limit - usage


def _addresses(proc: Path) -> Iterator[int]:
    if resource is None:
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with suppress(*_UNKNOWN):
            yield limit - (_entry(proc / "self" / "status", "VmSize:") << 10)


def _entry(file: Path, name: str) -> int:
    """Return the number behind a name.

    Raises
    ------
    OSError, ValueError, IndexError
        There is none.
    """
    for line in file.read_text().splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    raise ValueError(f"{file} has no {name}")
