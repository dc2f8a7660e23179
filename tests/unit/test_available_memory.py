"""What memory is left, read from files as systems and containers write them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from outlast import available_memory as module
from outlast.available_memory import available_memory

MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712


class Host:
    """Folders that stand for ``/proc`` and ``/sys/fs/cgroup``."""

    def __init__(self, root: Path) -> None:
        self.proc, self.groups = root / "proc", root / "cgroup"
        self.write(self.proc / "meminfo", "MemTotal: 9 kB", f"MemAvailable: {4096 * 1024} kB")
        self.write(self.proc / "self" / "status", "VmPeak: 2048 kB", "VmSize: 1024 kB")
        self.write(self.proc / "self" / "cgroup", "0::/")

    def write(self, path: Path, *lines: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]))

    def place(self, *lines: str) -> None:
        """Say in which groups the process is."""
        self.write(self.proc / "self" / "cgroup", *lines)

    def group_2(self, path: str, limit: str, usage: int, cache: int) -> None:
        folder = self.groups / path
        self.write(folder / "memory.max", limit)
        self.write(folder / "memory.current", str(usage))
        self.write(folder / "memory.stat", "anon 7", f"inactive_file {cache}")

    def group_1(self, path: str, limit: int, usage: int) -> None:
        folder = self.groups / "memory" / path
        self.write(folder / "memory.limit_in_bytes", str(limit))
        self.write(folder / "memory.usage_in_bytes", str(usage))

    @property
    def available(self) -> int | None:
        return available_memory(self.proc, self.groups)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    return Host(tmp_path)


def test_without_limits_it_is_what_the_system_has(host: Host) -> None:
    assert host.available == 4096 * MIB


def test_a_control_group_leaves_its_limit_without_what_is_in_use(host: Host) -> None:
    host.place("0::/user/job")
    host.group_2("user/job", str(512 * MIB), 200 * MIB, 50 * MIB)

    assert host.available == 362 * MIB


def test_the_tightest_of_the_groups_above_counts(host: Host) -> None:
    host.place("0::/user/job")
    host.group_2("user", str(300 * MIB), 100 * MIB, 0)
    host.group_2("user/job", "max", 100 * MIB, 0)

    assert host.available == 200 * MIB


def test_a_group_that_is_over_its_limit_leaves_nothing(host: Host) -> None:
    host.group_2("", str(100 * MIB), 120 * MIB, 0)

    assert host.available == 0


def test_the_first_version_of_control_groups_counts_too(host: Host) -> None:
    host.place("12:cpu,cpuacct:/docker/1", "4:memory:/docker/1", "0::/")
    host.group_1("docker/1", 256 * MIB, 56 * MIB)
    host.group_1("", UNLIMITED_V1, 900 * MIB)

    assert host.available == 200 * MIB


@pytest.mark.parametrize("path", ["/docker/1", "/../other"])
def test_in_a_container_the_root_is_its_own_group(host: Host, path: str) -> None:
    host.place(f"4:memory:{path}")
    host.group_1("", 128 * MIB, 28 * MIB)

    assert host.available == 100 * MIB


def test_a_limit_on_addresses_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (65 * MIB, 65 * MIB))

    assert host.available == 64 * MIB


@pytest.mark.parametrize("damage", ["", "MemAvailable:", "MemAvailable: much", "0::", "::::"])
def test_files_of_another_kind_say_nothing(host: Host, damage: str) -> None:
    for name in ("meminfo", "self/cgroup"):
        host.write(host.proc / name, damage)

    assert host.available is None


def test_elsewhere_nothing_is_known(host: Host, tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path / "none") is None


def test_this_system_says_something_or_nothing() -> None:
    available = available_memory()
    assert available is None or available >= 0
