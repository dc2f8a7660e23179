"""The example's modules are scripts beside each other: put their folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "resume_training"

sys.path.insert(0, str(EXAMPLE))
