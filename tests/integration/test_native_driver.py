"""Unmodified programs give the same on a device of their own process and in a remote session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import native_driver
from helpers.server_process import DEVICE, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(DEVICE != "emulated", reason="the library would stand for the GPU's own"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_driver.build(tmp_path_factory.mktemp("libcuda"))


def run(library: Path, where: str, program: str, **variables: str) -> str:
    """Return what a program prints, with the library in the place of the driver."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("LUPINE_")},
        "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
        **variables,
    }
    command = [sys.executable, "-m", "helpers.native_driver", where, str(PROGRAMS / program)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "needs"), [("bindings.py", "cuda.bindings.driver"), ("core.py", "cuda.core")]
)
def test_a_program_prints_the_same_here_and_there(
    library: Path, server: ServerProcess, tmp_path: Path, program: str, needs: str
) -> None:
    pytest.importorskip(needs)
    here = run(library, "local", program)
    assert re.search("^[0-9a-f]{64} True$", here, re.MULTILINE), here
    place = {"LUPINE_SERVER": server.endpoint, "LUPINE_STATE_DIR": str(tmp_path)}
    assert run(library, "remote", program, **place) == here
