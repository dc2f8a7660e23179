"""Compile the example's kernels to the PTX that is checked in; ``--check`` only compares.

Needs NVRTC of the version that the example's compile.py names, and no GPU.
"""

from __future__ import annotations

import runpy
from pathlib import Path

COMPILE = Path(__file__).resolve().parents[1] / "examples" / "resume_training" / "compile.py"

if __name__ == "__main__":
    runpy.run_path(str(COMPILE), run_name="__main__")
