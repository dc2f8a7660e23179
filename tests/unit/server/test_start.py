"""What a server loads before it is ready: a restart stands still for as long as that takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "import sys, {}; print(*sys.modules)"


def loaded_by(module: str) -> set[str]:
    """Return all modules that a process has which imported one."""
    command = [sys.executable, "-c", LOADED.format(module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "superfluous"),
    [
        # The first worker is started by then, and makes its device ready beside all the rest.
        ("outlast.server.app", {"sqlalchemy", "zmq", "outlast.session.schema", "tempfile"}),
        (
            "outlast.server.gateway",
            {
                "alembic",
                "multiprocessing",
                "numpy",
                "sqlalchemy.dialects.postgresql",
                "sqlalchemy.orm",
                "outlast.session.client",
            },
        ),
        ("outlast.server.worker", {"importlib.metadata", "multiprocessing", "sqlalchemy"}),
        ("outlast.server.keeper.__main__", {"zmq", "numpy", "sqlalchemy", "outlast.config"}),
    ],
)
def test_what_is_not_needed_at_the_start_is_not_loaded(module: str, superfluous: set[str]) -> None:
    assert not loaded_by(module) & superfluous
