"""Dependencies point one way: session <- checkpoint_providers <- server, and so on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "outlast"

#: What every package may use.
COMMON = ("outlast.errors", "outlast.cuda_types", "outlast._generated", "outlast.__version__")
#: Modules at the root for the processes: what configures them, and how they read messages.
PROCESS = (
    "outlast.available_memory",
    *("outlast.config", "outlast.log", "outlast.messages", "outlast.settings", "outlast.values"),
    *("outlast.buffers", "outlast.images", "outlast.zmtp", "outlast.zmtp_socket"),
)
ALLOWED = {
    "session": (*COMMON, "outlast.session"),
    "checkpoint_providers": (*COMMON, "outlast.session", "outlast.checkpoint_providers"),
    "server": (
        *COMMON,
        *PROCESS,
        "outlast.fault_rules",  # a setting's form
        "outlast.session",
        "outlast.checkpoint_providers",
        "outlast.migrations",  # upgrades the journal at start
        "outlast.server",
    ),
    "shim": (*COMMON, *PROCESS, "outlast.session", "outlast.shim"),
    "migrations": (*COMMON, "outlast.session.models", "outlast.migrations"),
}
#: What the sans-IO core must not know of: sockets, processes, devices.
BANNED_IN_SESSION = {
    "asyncio",
    "cuda",
    "llvmlite",
    "multiprocessing",
    "select",
    "selectors",
    "socket",
    "subprocess",
    "zmq",
}
#: What runs code that came in as data.
UNPICKLERS = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).resolve().rglob("*.py"))


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of everything a module imports, wherever it stands."""
    inside = path.relative_to((SOURCE / package).resolve()).parts[:-1]
    parents = ("outlast", package, *inside)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def is_below(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_stands_below_it(package):
    paths = modules(package)
    assert paths
    wrong = [
        f"{package}/{path.name}:{line} imports {name}"
        for path in paths
        for line, name in imports(path, package)
        if name.partition(".")[0] == "outlast" and not is_below(name, ALLOWED[package])
    ]
    assert not wrong


def test_the_session_core_knows_no_sockets_processes_or_devices():
    wrong = [
        f"session/{path.name}:{line} imports {name}"
        for path in modules("session")
        for line, name in imports(path, "session")
        if name.partition(".")[0] in BANNED_IN_SESSION
    ]
    assert not wrong


@pytest.mark.parametrize("package", ALLOWED)
def test_nothing_from_the_network_or_a_checkpoint_can_be_unpickled(package):
    wrong = [
        f"{package}/{path.name}:{line} imports {name}"
        for path in modules(package)
        if path.name != "testing.py"  # the conformance suite makes hostile pickles
        for line, name in imports(path, package)
        if name.partition(".")[0] in UNPICKLERS
    ]
    assert not wrong


def test_relative_imports_are_seen_through(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    module = tmp_path / "shim" / "deep" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("from ..link import Link\nfrom ...server import gateway\n")
    found = [name for _, name in imports(module, "shim")]
    assert found == ["outlast.shim.link.Link", "outlast.server.gateway"]
