"""Plugin of pytest: a test that fails shows the logs of its servers and programs.

Load it with ``-p helpers.server_logs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.server_process import ServerProcess

#: Of each log, from its end.
LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if report.failed:
        for path in logs_of(getattr(item, "funcargs", {})):
            lines = path.read_text(errors="replace").splitlines()[-LINES:]
            report.sections.append((str(path), "\n".join(lines)))
    return report


def logs_of(arguments: dict[str, Any]) -> list[Path]:
    """Return the logs in a test's own folder, and that of a server which it shares."""
    found = set()
    if isinstance(folder := arguments.get("tmp_path"), Path):
        found.update(folder.rglob("*.log"))
    if isinstance(server := arguments.get("server"), ServerProcess) and server.log.exists():
        found.add(server.log)
    return sorted(found)
