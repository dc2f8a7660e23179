"""The folder mapping in pyproject.toml, the links under src/ and the disk agree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"session", "server", "shim", "checkpoint_providers", "migrations"}


@pytest.fixture(scope="module")
def packaging() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]


def test_the_required_folders_are_subpackages_of_outlast(packaging):
    assert packaging["wheel"]["packages"] == {
        "outlast": "src/outlast",
        **{f"outlast/{name}": name for name in FOLDERS},
    }


def test_every_mapped_folder_has_its_link_and_its_sdist_exclusion(packaging):
    for name in FOLDERS:
        link = ROOT / "src" / "outlast" / name
        assert link.is_symlink(), f"ln -s ../../{name} {link}"
        assert link.resolve() == ROOT / name
        assert f"src/outlast/{name}" in packaging["sdist"]["exclude"]
    assert {p.name for p in (ROOT / "src" / "outlast").iterdir() if p.is_symlink()} == FOLDERS


def test_flat_names_are_never_imported():
    import outlast.cli
    import outlast.session

    assert outlast.cli.__name__ == "outlast.cli"
    assert not FOLDERS & set(sys.modules)


def test_an_installed_outlast_is_importable_from_any_folder(tmp_path):
    code = "import outlast.session.schema as m; print(m.__file__)"
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name == "schema.py"


def test_a_wheel_holds_every_module_once_and_runs_without_the_checkout(tmp_path):
    pytest.importorskip("scikit_build_core", reason="needs the build back end")
    build = "import sys, scikit_build_core.build as b; print(b.build_wheel(sys.argv[1]))"
    built = run_python("-c", build, str(tmp_path), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("outlast-*.whl"))) as wheel:
        names = wheel.namelist()
        wheel.extractall(tmp_path / "unpacked")
    assert len(names) == len(set(names))
    missing = {f"outlast/{path}" for path in tracked_modules()} - set(names)
    assert not missing
    # -S keeps the editable install's import hook away, so that only the wheel can answer.
    paths = [
        str(tmp_path / "unpacked"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    ]
    done = run_python(
        "-S",
        "-c",
        "import outlast.cli, outlast.session.schema as m; print(m.__file__)",
        cwd=tmp_path,
        PYTHONPATH=os.pathsep.join(paths),
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def tracked_modules() -> set[str]:
    """List the modules of the checkout as they should lie below outlast/."""
    folders = [ROOT / name for name in sorted(FOLDERS)]
    modules = {str(p.relative_to(ROOT)) for folder in folders for p in folder.rglob("*.py")}
    root = ROOT / "src" / "outlast"
    return modules | {p.name for p in root.glob("*.py")}


def run_python(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
