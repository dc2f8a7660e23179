"""Files stay short and finished, and packages say what is public."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 450  # lines
SOURCE_FOLDERS = (
    "src/outlast",
    "session",
    "server",
    "shim",
    "checkpoint_providers",
    "migrations",
    "tools",
    "examples",
    "benchmarks",
    "tests",
)
#: Split, so that this file does not name what it looks for.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")


def hand_written() -> list[Path]:
    """Return every source file that somebody wrote, once."""
    found = {
        path.resolve()
        for folder in SOURCE_FOLDERS
        for pattern in ("*.py", "*.c", "*.cc", "*.cpp", "*.cu", "*.h", "*.hpp", "*.sh")
        for path in (ROOT / folder).rglob(pattern)
    }
    return sorted(p for p in found if not {"_generated", "gen", "__pycache__"} & set(p.parts))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_hand_written_files_stay_short():
    lengths = {named(path): len(path.read_text().splitlines()) for path in hand_written()}
    assert lengths
    assert not {name: lines for name, lines in lengths.items() if lines > LIMIT}


def test_nothing_is_marked_unfinished():
    marked = [
        f"{named(path)}:{number}"
        for path in hand_written()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not marked


def test_every_module_says_what_it_is():
    silent = [
        named(path)
        for path in hand_written()
        if path.suffix == ".py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def package_files() -> list[Path]:
    return [p for p in hand_written() if p.name == "__init__.py" and "tests" not in p.parts]


@pytest.mark.parametrize("path", package_files(), ids=named)
def test_a_package_file_only_re_exports_a_sorted_list(path):
    exported: list[str] = []
    imported: set[str] = set()
    own: set[str] = set()
    for node in ast.parse(path.read_text()).body[1:]:
        match node:
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(names=names):
                imported |= {alias.asname or alias.name for alias in names}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                exported = ast.literal_eval(value)
            case ast.Assign(targets=[ast.Name(id="__version__" as name)]):
                own.add(name)
            case _:
                pytest.fail(f"{named(path)}:{node.lineno} does more than re-export")
    assert set(exported) == imported | own
    assert exported == sorted(exported, key=export_order)


def export_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Order as ruff's RUF022 does: constants, classes, the rest; numbers by value."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    parts = re.split(r"(\d+)", name)
    return group, [(int(part), "") if part.isdigit() else (0, part) for part in parts]
