"""All findings, as they come."""

from __future__ import annotations

from collections.abc import Iterator

from outlast import __version__
from outlast.config import ServeConfig
from outlast.server.doctor import devices, places
from outlast.server.doctor.finding import Finding, Grade, ok


def findings(config: ServeConfig) -> Iterator[Finding]:
    """Yield what a server with these settings would find here."""
    yield ok("outlast", f"version {__version__}")
    found, memory = devices.look(config.device, config.emulated_devices)
    yield from found
    state, running = places.state(config)
    yield state
    yield places.port(config, running)
    if state.grade is Grade.FAILURE:
        return
    yield places.database(config)
    yield from places.checkpoints(config, memory)


def report(config: ServeConfig) -> int:
    """Print all findings; return the exit code: 1 if a server cannot run."""
    worst = 0
    for finding in findings(config):
        print(finding, flush=True)
        worst = max(worst, int(finding.grade is Grade.FAILURE))
    return worst
