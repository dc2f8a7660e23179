"""Settings of the emulated device, for `outlast.config`."""

from __future__ import annotations

from typing import Any

from outlast import values
from outlast.settings import setting


def devices() -> Any:
    """Return the setting of how many devices it shows."""
    return setting(
        values.number(1, 16),
        1,
        "How many devices the emulated device shows, each with memory of its own.",
        env="OUTLAST_EMULATED_DEVICES",
        flag="--emulated-devices",
        shown="1",
        metavar="N",
    )


def faults() -> Any:
    """Return the setting of the faults that happen on it."""
    return setting(
        _rules,
        "",
        "Faults of the emulated device, for tests of recovery: rules as JSON, or @PATH of a file.",
        env="OUTLAST_EMULATED_FAULTS",
        flag="--emulated-faults",
        shown="none",
        metavar="JSON|@PATH",
    )


def _rules(text: str) -> str:
    from outlast.fault_rules import fault_rules  # late: few ask for it

    return fault_rules(text)
